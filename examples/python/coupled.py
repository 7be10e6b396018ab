"""A simulation of two codes: an ocean and the air above it, which exchange a field in every step. `coupled.py ocean` prints an address;
`coupled.py air ADDRESS`, on the same host or at another site, joins it."""

import sys
from array import array

import madrigal

CELLS, STEPS = 10_000, 20
EXCHANGE = 0.25  # The share of the difference that passes from one to the other in a step.
TYPE = "unit=kelvin"  # Both ends say so, or there is no connection.


def ocean(runtime: madrigal.Runtime) -> float:
    fluxes, out = madrigal.ReceivePort(runtime, "fluxes", TYPE), madrigal.SendPort(runtime, "field", TYPE)
    print(fluxes.address, flush=True)
    with fluxes.receive(timeout=30) as first:  # Who joins says where it takes temperatures.
        out.connect(first.take(), timeout=30)
    temperature, flux = array("d", [290] * CELLS), array("d", bytes(8 * CELLS))
    for _ in range(STEPS):
        out.send(temperature)
        with fluxes.receive(timeout=30) as message:
            message.take_into(flux)
        temperature = array("d", (here + change for here, change in zip(temperature, flux)))
    return sum(temperature) / CELLS


def air(runtime: madrigal.Runtime, address: str) -> float:
    surface, out = madrigal.ReceivePort(runtime, "surface", TYPE), madrigal.SendPort(runtime, "field", TYPE)
    out.connect(address, timeout=30)
    out.send(surface.address)
    temperature, below = array("d", [278] * CELLS), array("d", bytes(8 * CELLS))
    for _ in range(STEPS):
        with surface.receive(timeout=30) as message:
            message.take_into(below)
        flux = array("d", (EXCHANGE * (here - other) for here, other in zip(temperature, below)))
        out.send(flux)
        temperature = array("d", (here - change for here, change in zip(temperature, flux)))
    return sum(temperature) / CELLS


with madrigal.Runtime() as runtime:
    if sys.argv[1:2] == ["ocean"]:
        print(f"the ocean has {ocean(runtime):.3f} K")
    else:
        print(f"the air has {air(runtime, sys.argv[2]):.3f} K")
