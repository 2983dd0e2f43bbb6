"""Who vouches for an entry: Ed25519 signatures, lists of trusted keys, and what a job makes of them.

::

    keys         key files, public keys as one line of text
    statements   what exactly is signed: an entry, a promotion
    trust        the list of trusted keys, and its verdict on an entry
    signer       signs what is published here
    check        what a job does about the verdict

``cryptography`` is imported when the first signature is made or checked, never before: a job that signs and checks
nothing does not need it installed.
"""
