"""Settings: `TRUEUP_*` environment variables, each secret with a `_FILE` twin. `trueup settings` lists them."""

import os
from pathlib import Path
from typing import Any, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

SECRETS = (
    "database_url",
    "nats_url",
    "grant_keys",
    "signing_key",
    "dev_issuer_key",
    "role_passwords",
    "planner_client_secret",
    "oidc_client_secret",
)


class Settings(BaseSettings):
    """All settings of all services; each service reads those it needs."""

    model_config = SettingsConfigDict(env_prefix="TRUEUP_", extra="ignore", hide_input_in_errors=True)

    mode: str = Field(
        default="production", pattern="^(development|production)$", description="development or production"
    )
    service: str = Field(default="", description="name of this service (set by its main)")
    instance: str = Field(default="", description="name of this process, unique among replicas; default: service-host")
    database_url: SecretStr = Field(default=SecretStr(""), description="PostgreSQL, with this service's own role")
    database_pool: int = Field(default=8, ge=2, le=100, description="connections of this process")
    nats_url: SecretStr = Field(default=SecretStr(""), description="NATS, with this service's own user")
    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8080, ge=0, le=65535, description="port of the gateway")
    health_port: int = Field(default=0, ge=0, le=65535, description="port of /livez, /readyz and /metrics; 0 = any")
    roles: str = Field(default="api,worker", description="what a gateway process does: api, worker or both")
    systems: str = Field(default="", description="systems an adapters process serves; empty = all installed")
    state_dir: Path = Field(default=Path(".trueup"), description="folder of local state")
    connections: Path | None = Field(default=None, description="connections file")
    grant_keys: SecretStr = Field(default=SecretStr(""), description='JSON {"system": "base64url key"}')
    signing_key: SecretStr = Field(default=SecretStr(""), description="Ed25519 private JWK that signs capabilities")
    dev_issuer: bool = Field(default=False, description="serve /dev/token (refused in production mode)")
    dev_issuer_key: SecretStr = Field(default=SecretStr(""), description="Ed25519 private JWK of the dev issuer")
    role_passwords: SecretStr = Field(
        default=SecretStr(""), description='JSON {"service": "password"}: what the bootstrap gives the database roles'
    )
    policy_tenant: str = Field(
        default="",
        description="tenant whose admins make the policies of all tenants; without it, in production nobody does",
    )
    oidc_issuer: str = Field(
        default="", description="address of the OpenID Connect issuer whose access tokens (at+jwt) are trusted"
    )
    oidc_client_id: str = Field(default="", description="client id of the console there")
    oidc_client_secret: SecretStr = Field(default=SecretStr(""), description="its secret; empty for a public client")
    oidc_scopes: str = Field(default="openid", description="scopes that the console asks for")
    public_url: str = Field(default="", description="address of the gateway as clients see it")
    clock: str = Field(default="system", pattern="^(system|virtual)$", description="virtual lets `clock advance` work")
    exception_owner: str = Field(default="operators", description="owner of new exceptions")
    escalation_owner: str = Field(default="duty-manager", description="owner after an exception's deadline")
    exception_sla_seconds: int = Field(default=3600, ge=1, description="deadline of new exceptions")
    drift_rules: Path | None = Field(default=None, description="rules of what drift is accepted until when (YAML)")
    selftest_seconds: float = Field(
        default=900.0, ge=0, description="how often the reconciler is given a planted drift to find; 0 = never"
    )
    survey_seconds: float = Field(
        default=21600.0, ge=0, description="how often systems are surveyed for effects that nobody manages; 0 = never"
    )
    gateway_url: str = Field(default="", description="address of the gateway as the repair planner sees it")
    planner_token_url: str = Field(
        default="", description="OAuth token endpoint that gives the repair planner its access tokens"
    )
    planner_client_id: str = Field(default="", description="client id of the repair planner there")
    planner_client_secret: SecretStr = Field(default=SecretStr(""), description="its client secret")
    incident_exceptions: int = Field(default=5, ge=2, description="exceptions of one cause that make an incident")
    incident_window_seconds: float = Field(default=600.0, gt=0, description="within this time")
    incident_probe_seconds: float = Field(default=30.0, gt=0, description="until an incident's end is first tried out")
    slo: Path | None = Field(default=None, description="service levels (YAML) in place of those that ship")
    anomalies: Path | None = Field(default=None, description="anomaly rules (YAML) in place of those that ship")
    window_slots: int = Field(default=256, ge=1, description="operations in flight per tenant and system, at most")
    body_bytes_max: int = Field(default=1024 * 1024, ge=1024, description="largest request body")
    payload_bytes_max: int = Field(default=256 * 1024, ge=1024, description="largest command payload")
    kept_payload_bytes_max: int = Field(
        default=8 * 1024**2, ge=1024, description="largest command payload that is given as an artifact"
    )
    artifact_bytes_max: int = Field(default=16 * 1024**2, ge=1024, description="largest artifact")
    accept_queue_max: int = Field(default=2000, ge=1, description="requests waiting to be accepted")
    log_level: str = Field(default="INFO", description="log level")
    otlp_endpoint: str = Field(default="", description="OTLP/HTTP endpoint for traces; empty = traces stay local")
    trace_ratio: float = Field(default=0.0, ge=0, le=1, description="share of requests that are traced")
    crash_at: str = Field(default="", description="named crash point (tests)")
    clock_skew_seconds: float = Field(default=0.0, description="how far this process's clock is ahead (tests)")
    worker_slots: int = Field(default=64, ge=1, description="attempts in flight per adapter process and connection")
    send_window_seconds: float = Field(default=10.0, gt=0, description="from SENT to the first byte, at most")

    @model_validator(mode="before")
    @classmethod
    def _read_files(cls, values: Any) -> Any:
        for name in SECRETS:
            path = os.environ.get(f"TRUEUP_{name.upper()}_FILE")
            if path and name not in values:
                try:
                    values[name] = Path(path).read_text(encoding="utf-8").strip()
                except OSError as error:
                    raise ValueError(f"TRUEUP_{name.upper()}_FILE cannot be read: {error.strerror}") from error
        return values

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if self.mode == "production" and self.dev_issuer:
            raise ValueError("TRUEUP_DEV_ISSUER=1 is refused in production mode")
        if self.mode == "production" and self.crash_at:
            raise ValueError("TRUEUP_CRASH_AT is refused in production mode")
        if self.mode == "production" and self.clock_skew_seconds:
            raise ValueError("TRUEUP_CLOCK_SKEW_SECONDS is refused in production mode")
        return self

    @property
    def development(self) -> bool:
        """True in development mode."""
        return self.mode == "development"
