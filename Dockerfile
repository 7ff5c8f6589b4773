# The image of the controller: the binary and the libraries it needs, without a shell, not as root.
#
#   docker buildx build --load -t karpenter .                                     for this computer's architecture
#   docker buildx build --platform linux/amd64,linux/arm64 --push -t REPOSITORY . for both architectures
#
# The second builds the other architecture under emulation, which takes hours. With a builder node for each architecture
# (`docker buildx create --append`) each is built natively.
FROM rust:1.95-bookworm AS source
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

# `--target kwok`: the kwok provider, for clusters without a cloud.
FROM gcr.io/distroless/cc-debian12:nonroot AS kwok
COPY --from=build-kwok /karpenter-kwok /karpenter-kwok
COPY LICENSE NOTICE /licenses/
USER 65532:65532
EXPOSE 8080 8081
ENTRYPOINT ["/karpenter-kwok"]

# glibc, libgcc, certificates, /etc/passwd: https://github.com/GoogleContainerTools/distroless
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /karpenter /karpenter
COPY LICENSE NOTICE /licenses/
USER 65532:65532
EXPOSE 8080 8081 8443
ENTRYPOINT ["/karpenter"]
