# The image of the command boxpair: one static binary and the CA certificates, for an account that is not root.
# docker build --build-arg VERSION=v1.0.0 --tag boxpair:1.0.0 .
FROM --platform=$BUILDPLATFORM golang:1.26.5-alpine@sha256:0178a641fbb4858c5f1b48e34bdaabe0350a330a1b1149aabd498d0699ff5fb2 AS build
ARG TARGETOS
ARG TARGETARCH
ARG VERSION
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -C cmd/boxpair -trimpath -ldflags "-s -w -X main.release=$VERSION" -o /out/boxpair .

FROM scratch
ARG VERSION=devel
LABEL org.opencontainers.image.title="boxpair" \
      org.opencontainers.image.description="Relay and operator's command of a transactional outbox" \
      org.opencontainers.image.source="https://github.com/boxpair/boxpair" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/boxpair /boxpair
USER 65532:65532
ENTRYPOINT ["/boxpair"]
