"""Names of concepts: from attributes or a language model, each checked on classes that did not choose it."""
