"""A client of language models: it asks an OpenAI-compatible server for JSON of a given form.

    class Answer(pydantic.BaseModel):
        animal: str

    with htaf.concepts.llm.client.ServerClient("gpt-4o-mini", cache=htaf.concepts.llm.client.default_cache()) as client:
        reply = client.ask([{"role": "user", "content": "Which animal barks? Reply with JSON."}], Answer)

`messages.picture_part` puts a picture into a message. `client.Client` says what a client is, so that a stand-in can
take its place. Asking needs openai and pydantic: pip install 'htaf[images]'.
"""
