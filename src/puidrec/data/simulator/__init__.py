"""The parts of the simulator; `puidrec.data.synthetic` has its public functions."""
