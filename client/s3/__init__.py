"""Buckets: what the server's S3 store and a client that works on ``s3://`` directly have in common.

==============  ======================================================================
`url`           ``s3://bucket/prefix?endpoint=…&region=…``
`errors`        what S3 answers, sorted into a few reasons, one sentence each
`retry`         tries under one deadline, with jittered pauses
`sdk`           the only module that touches boto3, which the base install does not have
`bucket`        objects by name: read, create-only write, list, copy, remove
`reader`        one object's bytes, going on where a connection broke off
`multipart`     objects too large for memory: parts, in the background
`probe`         whether a store keeps a name to its first writer
==============  ======================================================================
"""
