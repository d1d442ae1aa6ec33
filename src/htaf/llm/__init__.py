"""The client of language-model servers that speak as OpenAI does."""
