"""Caches of other programs: their entries brought into the shared cache, and back into their folders.

An entry goes by the key of the cache it comes from, under kind ``foreign``; nothing is read into it. See
``docs/foreign.md``.

===============  ====================================================================
`names`          what an entry is called: layout, that cache's own name, compiler, target
`layout`         what a layout says of paths, and when an entry in it is complete
`npc`            Neuron Persistent Cache (libneuronxla)
`libtorch_lite`  libtorch-neuronx-lite and vLLM-Neuron
`torchneuron`    TorchNeuron's directory of NEFFs
`table`          the layouts by name, and which one a tree is in
`tree`           files below a directory, read without following links
`bucket_tree`    the same below ``s3://bucket/prefix``
`scan`           complete entries of a tree, and what is left out and why
`writing`        an entry put into a directory: whole, or not at all
`host`           compiler version and target of this host
`shared`         the shared cache, asked for foreign entries
`pushing`        a tree's entries into the shared cache
`pulling`        the shared cache's entries into a directory
`watching`       both again and again, beside a job
===============  ====================================================================
"""
