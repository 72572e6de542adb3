"""Parts that the HTTP faces share: protocol, guard, requests, streamed answers, assets."""
