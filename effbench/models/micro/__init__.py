"""Small workloads that each answer one question about a cost of PyTorch or of the GPU; one file a question.

Each has variants (`model.module.variant=a,b`), ways of doing the same thing: they return the same values, so that what
tells them apart is what they cost. Where that cannot be, the file says what is returned instead.
"""
