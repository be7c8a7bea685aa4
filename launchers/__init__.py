"""How ranks are started: each launcher is a pure function from a LaunchSpec to a Command."""
