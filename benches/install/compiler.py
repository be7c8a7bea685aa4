"""What compiles Horovod: found and tried on one line of C++ before minutes are spent."""

from __future__ import annotations

import shutil
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benches.errors import UserError
from launchers.supervise import output

TRY_LIMIT_S = 60.0


def check(env: Mapping[str, str], standard: int, include: Path | None = None) -> str:
    """The compiler's own first line. Raises UserError with the remedy where something that the build needs is missing.

    `standard`: of C++, such as 20. `include`: folder of Python.h, by default this interpreter's.
    """
    words = env.get("CXX", "c++").split()
    for program, remedy in ((words[0], "install g++, or set CXX"), ("make", "install make")):
        if shutil.which(program, path=env.get("PATH")) is None:
            raise UserError(f"{program}: not found; {remedy}")
    header = (include or Path(sysconfig.get_path("include"))) / "Python.h"
    if not header.exists():
        raise UserError(f"{header}: missing; install Python's headers (python3-dev) or take another interpreter")
    said = output([*words, "--version"], TRY_LIMIT_S)[1].strip().splitlines()
    version = said[0] if said else words[0]
    with tempfile.TemporaryDirectory(prefix="ringduel-") as folder:
        code_file = Path(folder) / "try.cc"
        code_file.write_text("#include <string>\nint main() { return 0; }\n")
        command = [*words, f"-std=c++{standard}", "-c", str(code_file), "-o", str(code_file.with_suffix(".o"))]
        code, _ = output(command, TRY_LIMIT_S)
    if code != 0:
        raise UserError(
            f"{words[0]}: {version} does not compile C++{standard}, which torch needs; set CXX to one that does"
        )
    return version
