"""What scenario and end-to-end tests share: real servers, real jobs."""
