"""Processes that know nothing of each other but a pool's name: `pool.py NAME SIZE`, started SIZE times, on any hosts of the grid. One is
elected, and the others send it their ranks."""

import sys

import madrigal

name, size = sys.argv[1], int(sys.argv[2])
with madrigal.Runtime() as runtime:
    port = madrigal.ReceivePort(runtime, "in")
    # What others have to know of this process comes with it.
    with madrigal.Pool(runtime, name, size, blob=port.address.encode(), timeout=60) as pool:
        winner = pool.elect("collector", for_life=True)
        if winner == pool.id:
            ranks = []
            for _ in range(size - 1):
                with port.receive(timeout=60) as message:
                    ranks.append(message.take())
            print("from", pool.location(winner).split("@")[0], sorted([*ranks, pool.rank()]))
            pool.terminate()
        else:
            out = madrigal.SendPort(runtime, "out")
            out.connect(pool.blob(winner).decode(), timeout=60)
            out.send(pool.rank())
            pool.wait_terminated(timeout=60)
