"""A program that runs another one in the fork server, and stands for it: its files, signals and exit code.

Arguments: the fork server's address, the program, and its arguments. Written to start in a few milliseconds.
"""

import json
import os
import signal
import socket
import sys


def main(server: str, program: str, *arguments: str) -> int:
    """Run the program to its end; the exit code."""
    if program.endswith("/python") and (not arguments or (arguments[0][0] == "-" and arguments[0] not in ("-m", "-c"))):
        os.execv(program, [program, *arguments])
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(server)
    folder = os.path.realpath(os.curdir)
    request = {"command": [program, *arguments], "environment": dict(os.environ), "folder": folder}
    line = json.dumps(request).encode() + b"\n"
    connection.sendall(line[socket.send_fds(connection, [line], [0, 1, 2]) :])
    child = int(connection.recv(12, socket.MSG_WAITALL))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: os.kill(child, number))
    code = os.waitstatus_to_exitcode(int(connection.recv(12, socket.MSG_WAITALL)))
    if code < 0:
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
