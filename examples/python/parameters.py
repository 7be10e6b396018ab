"""A parameter server: rank 0 adds what the workers send to its parameters, and sends them back. Start it by `madrigal run -n 4`, or by
mpiexec of any MPI."""

from array import array

import madrigal

LENGTH, ROUNDS = 10_000, 5

world = madrigal.world()
parameters = array("d", bytes(8 * LENGTH))
if world.rank == 0:
    gradient = array("d", bytes(8 * LENGTH))
    for _ in range(ROUNDS):
        for _ in range(world.size - 1):
            with world.receive() as message:
                message.take_into(gradient)
            parameters = array("d", (old + new for old, new in zip(parameters, gradient)))
        for worker in range(1, world.size):
            world.send(worker, parameters)
    print("the parameters' sum is", sum(parameters))
else:
    gradient = array("d", [world.rank] * LENGTH)
    for _ in range(ROUNDS):
        world.send(0, gradient)
        with world.receive(0) as message:
            message.take_into(parameters)
