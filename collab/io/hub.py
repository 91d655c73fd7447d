"""Uploading an exported model to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from huggingface_hub.utils import httpx, validate_repo_id

from ..errors import ConfigurationError, OutputError, first_line

_WEIGHTS = ("model*.safetensors", "model.safetensors.index.json", "pytorch_model*")


def check_repo_id(repo_id: str) -> None:
    """Checks that a name is a valid Hub id.

    Raises:
        ConfigurationError: if it is not.
    """
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise ConfigurationError(f"{repo_id!r} is not a valid Hub id such as user/model: {error}") from error


def push(folder: Path, repo_id: str) -> str:
    """Uploads an exported folder as it is, code, card and report included.

    Args:
        folder: a folder that `collab.save` wrote.
        repo_id: id of the repository; it is created if it does not exist.

    Returns:
        The URL of the repository.

    Raises:
        OutputError: if the Hub cannot be reached or refuses the upload; the folder is kept.
    """
    api = HfApi()
    try:
        url = api.create_repo(repo_id, exist_ok=True)
        api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            commit_message="Upload collaborative model",
            delete_patterns=list(_WEIGHTS),  # of an earlier model, which would be loaded instead
        )
    except (OSError, ValueError, httpx.HTTPError, HfHubHTTPError, LocalTokenNotFoundError) as error:
        raise OutputError(
            f"{folder} is complete, but could not be uploaded to {repo_id}: {first_line(error).rstrip('.')}. "
            f"Upload it later with: hf upload {repo_id} {folder}"
        ) from error
    return str(url)
