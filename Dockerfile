# The image of the controller: the binary and the libraries it needs, without a shell, not as root.
#
#   docker buildx build --load -t karpenter .                                     for this computer's architecture
#   docker buildx build --platform linux/amd64,linux/arm64 --push -t REPOSITORY . for both architectures
#
# The second builds the other architecture under emulation, which takes hours. With a builder node for each architecture
# (`docker buildx create --append`) each is built natively.
FROM rust:1.95-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS source
WORKDIR /src
COPY . .

FROM source AS build
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    cargo image-binary \
    && cp target/dist/karpenter /karpenter

FROM source AS build-kwok
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    cargo build --locked --profile dist --package karpenter-kwok-controller \
    && cp target/dist/karpenter-kwok /karpenter-kwok

FROM source AS build-cluster-api
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    cargo build --locked --profile dist --package karpenter-cluster-api-controller \
    && cp target/dist/karpenter-cluster-api /karpenter-cluster-api

# `--target kwok`: the kwok provider, for clusters without a cloud.
FROM gcr.io/distroless/cc-debian12:nonroot@sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f AS kwok
COPY --from=build-kwok /karpenter-kwok /karpenter-kwok
COPY LICENSE NOTICE /licenses/
USER 65532:65532
EXPOSE 8080 8081
ENTRYPOINT ["/karpenter-kwok"]

# `--target cluster-api`: the Cluster API provider.
FROM gcr.io/distroless/cc-debian12:nonroot@sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f AS cluster-api
COPY --from=build-cluster-api /karpenter-cluster-api /karpenter-cluster-api
COPY LICENSE NOTICE /licenses/
USER 65532:65532
EXPOSE 8080 8081
ENTRYPOINT ["/karpenter-cluster-api"]

# glibc, libgcc, certificates, /etc/passwd: https://github.com/GoogleContainerTools/distroless
FROM gcr.io/distroless/cc-debian12:nonroot@sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f
COPY --from=build /karpenter /karpenter
COPY LICENSE NOTICE /licenses/
USER 65532:65532
EXPOSE 8080 8081 8443
ENTRYPOINT ["/karpenter"]
