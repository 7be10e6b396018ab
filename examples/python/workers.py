"""Master and workers, as programs for PVM are written: rank 0 gives each worker a task, and whoever has answered gets the next one. Start it
by `madrigal run -n 4`, or by mpiexec of any MPI."""

from array import array

import madrigal

STOP = -1  # Instead of a task's number: there are no more.
NUMBERS, TASKS = 1_000, 100  # A task is to count the primes among so many numbers.


def master(world: madrigal.Circuit) -> None:
    tasks = iter(range(TASKS))
    busy = set(range(1, world.size))
    for worker in busy:
        world.send(worker, array("q", [next(tasks, STOP)]))
    primes, result = 0, array("q", [0])
    while busy:
        with world.receive() as message:
            message.take_into(result)
            worker = message.sender
        if result[0] == STOP:
            busy.remove(worker)
        else:
            primes += result[0]
            world.send(worker, array("q", [next(tasks, STOP)]))
    print(primes, "primes below", TASKS * NUMBERS, "counted by", world.size - 1, "workers")


def is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, int(number**0.5) + 1))


def work(world: madrigal.Circuit) -> None:
    task = array("q", [0])
    while task[0] != STOP:
        with world.receive(0) as message:
            message.take_into(task)
        numbers = range(NUMBERS * task[0], NUMBERS * (task[0] + 1))
        world.send(0, array("q", [STOP if task[0] == STOP else sum(map(is_prime, numbers))]))


world = madrigal.world()
master(world) if world.rank == 0 else work(world)
