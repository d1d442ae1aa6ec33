"""Names for concepts, each checked on classes or images that did not choose it.

`by_attributes.name_by_attributes` chooses names from a table of attributes of the classes. `job.naming_job` asks a
model (`htaf.concepts.llm`): of `job.class_evidence` one that reads names of classes, of
`job.picture_evidence` one that sees images with a bit and without it; or it checks names that somebody gave.
`files.read_names` and `files.write_names` are for files of names. What asks a model needs pydantic: pip install
'htaf[images]'.
"""
