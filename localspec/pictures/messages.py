"""Pictures of a conversation: a message holds them in base64 under `images`, beside its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localspec.core.types import Picture
from localspec.pictures.encoded import of_text

IMAGES = "images"
Message = Mapping[str, Any]


def of_messages(messages: Sequence[Message]) -> list[Picture]:
    """Return the pictures of all messages in their order; raises PromptError for one that is none."""
    return [of_text(text) for message in messages for text in message.get(IMAGES) or ()]


def counted(messages: Sequence[Message]) -> list[Message]:
    """Return messages that have the number of their pictures in place of these, as templates take them."""
    return [
        {**message, IMAGES: len(message[IMAGES])} if message.get(IMAGES) else message for message in messages
    ]
