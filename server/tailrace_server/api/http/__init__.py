"""Parts that the HTTP faces share: protocol, authentication, requests, streamed responses, assets."""
