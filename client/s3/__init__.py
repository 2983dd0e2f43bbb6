"""Buckets: what the server's S3 store and a client that works on ``s3://`` directly have in common.

==============  ======================================================================
`url`           ``s3://bucket/prefix?endpoint=…&region=…``
`errors`        what S3 answers, sorted into a few reasons, one sentence each
`retry`         tries under one deadline, with jittered pauses
`sdk`           the only module that touches the AWS SDK, which the base install does not have
`requests`      requests for names below the prefix, tried again where that helps
`bucket`        objects by name: read, create-only write, list, copy, remove
`reader`        one object's bytes, going on where a connection broke off
`multipart`     objects in parts
`upload`        writing an object while its bytes come in, in bounded memory
`probe`         whether a store keeps a name to its first writer
==============  ======================================================================
"""
