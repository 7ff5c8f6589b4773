//! How kinds are shown: discovery, OpenAPI, Tables, protobuf request bodies.
