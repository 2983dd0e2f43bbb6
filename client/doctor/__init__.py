"""``neff-cache doctor``: what keeps jobs on this machine from using the cache.

A table of check functions (`client.doctor.table`). Other packages of this distribution, and of others, add rows through
the entry point group `neff_cache.checks`: a sequence of `client.doctor.base.Row`.
"""
