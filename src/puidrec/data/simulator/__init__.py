"""The parts of the simulator; `puidrec.data.synthetic` is its public face."""
