"""Two programs: `echo.py serve` prints a card; `echo.py ask CARD` connects to it by the best path, and says which."""

import sys

import madrigal


def serve() -> None:
    with madrigal.Runtime() as runtime:
        acceptor = runtime.serve("example-echo")
        print(acceptor.address, flush=True)
        link = acceptor.accept()
        while data := link.read():
            link.write(data)


def ask(card: str) -> None:
    with madrigal.Runtime() as runtime:
        link = runtime.connect(card, timeout=10)
        link.write(b"hello")
        print(link.read(timeout=10).decode(), "by", link.why()["driver"])


if sys.argv[1:2] == ["serve"]:
    serve()
else:
    ask(sys.argv[2])
