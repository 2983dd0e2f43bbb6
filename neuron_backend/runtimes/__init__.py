"""Runtimes behind one interface: ``nrt`` for a Trainium host, ``cpu`` for the stand-in."""
