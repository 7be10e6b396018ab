"""The parts of the MPI test bed: hosts, MPIs, programs, scenes, checks."""
