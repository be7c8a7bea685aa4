"""A cluster on one machine: network namespaces as nodes, with addresses, host names and links of their own. Linux."""
