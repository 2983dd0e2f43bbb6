"""Which compilers may run on a node at the same time: a number of them, within the node's memory."""
