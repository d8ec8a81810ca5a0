"""A real WordPress of this process' own: MariaDB on a socket, PHP's own web server with workers, no root needed.

The site lives below `/acme`, as in the sandbox. Its data stay between runs, and one process uses them at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.real.fetching import Unfetchable, debian, one_at_a_time

SITE: Final = Path(__file__).with_name("site")
WORKERS: Final = 4
START_SECONDS: Final = 60.0
_PHP: Final = ("php-cli", "php-mysql", "php-curl", "php-gd", "php-mbstring", "php-xml")
_DATABASE: Final = ("mariadb-server-core", "mariadb-client-core")
_WORDPRESS: Final = (
    "wordpress", "wordpress-theme-twentytwentythree", "php-getid3", "libjs-cropper", "libjs-underscore"
)  # fmt: skip
_CONFIG: Final = """<?php
define('DB_NAME', 'wp'); define('DB_USER', 'wp'); define('DB_PASSWORD', ''); define('DB_HOST', 'localhost:SOCKET');
define('DB_CHARSET', 'utf8mb4'); define('DB_COLLATE', '');
foreach (['AUTH', 'SECURE_AUTH', 'LOGGED_IN', 'NONCE'] as $k) {
    define($k . '_KEY', 'stand' . $k); define($k . '_SALT', 'stand-salt' . $k);
}
$table_prefix = 'wp_';
define('WP_HOME', 'http://' . ($_SERVER['HTTP_HOST'] ?? '127.0.0.1') . '/acme'); define('WP_SITEURL', WP_HOME);
define('WP_ENVIRONMENT_TYPE', 'local');
define('WP_HTTP_BLOCK_EXTERNAL', true); define('AUTOMATIC_UPDATER_DISABLED', true); define('DISABLE_WP_CRON', true);
define('WP_DEBUG', false); ini_set('display_errors', '0');
if (!defined('ABSPATH')) define('ABSPATH', __DIR__ . '/');
require_once ABSPATH . 'wp-settings.php';
"""


class Programs:
    """The programs, this machine's own where it has them, else unpacked ones, and how they find their libraries."""

    def __init__(self) -> None:
        self.environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        self.mariadbd, self.base = self._database()
        self.php = self._php()

    def _database(self) -> tuple[str, Path]:
        here = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin")
        if here and shutil.which("mariadb-install-db") and shutil.which("mariadb"):
            return here, Path("/usr")
        root = debian("mariadb", _DATABASE)
        self._libraries(root)
        return str(root / "usr/sbin/mariadbd"), root / "usr"

    def _php(self) -> list[str]:
        here = shutil.which("php")
        if here:
            modules = subprocess.run([here, "-m"], capture_output=True, text=True, check=False).stdout.split()
            if {"mysqli", "mbstring", "xml"} <= set(modules):
                return [here]
        root = debian("php", _PHP)
        self._libraries(root)
        program = next(iter(sorted(root.glob("usr/bin/php[0-9]*"))), None)
        folder = next(iter(sorted(root.glob("usr/lib/php/2*"))), None)
        if program is None or folder is None:
            raise Unfetchable("the php packages hold no php")
        first = {"mysqlnd": 0, "pdo": 0, "xml": 1}  # the others stand on these
        names = sorted((path.stem for path in folder.glob("*.so")), key=lambda name: (first.get(name, 2), name))
        loaded = [f"-dextension={name}" for name in names if name != "opcache"]
        return [str(program), "-n", f"-dextension_dir={folder}", *loaded, "-dzend_extension=opcache"]

    def _libraries(self, root: Path) -> None:
        found = [str(path) for path in (*root.glob("usr/lib/*-linux-gnu"), *root.glob("lib/*-linux-gnu"))]
        known = self.environment.get("LD_LIBRARY_PATH")
        self.environment["LD_LIBRARY_PATH"] = ":".join([*found, *([known] if known else [])])


class WordPressServer:
    """One running site. `order` is an outsider's hand in it, past WordPress."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._children: list[subprocess.Popen[bytes]] = []
        self.version = self.database_version = self.php_version = ""
        self.passwords: dict[str, str] = {}
        self.url = ""

    def start(self) -> WordPressServer:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        folder = self._stack.enter_context(one_at_a_time("wordpress-site"))
        programs = Programs()
        root = debian("wordpress", (), alone=_WORDPRESS)
        self._site = folder / "www" / "acme"
        self._programs, self._logs = programs, folder / "logs"
        self._logs.mkdir(exist_ok=True)
        if not (self._site / "wp-load.php").exists():
            source = root / "usr/share/wordpress"
            shutil.copytree(source, self._site, ignore_dangling_symlinks=True, dirs_exist_ok=True)
        sockets = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="trueup-wp-")))
        self._start_database(folder / "db", sockets / "db")
        self._dress(sockets / "db")
        self._start_web(folder / "www")
        told = re.search(r"\$wp_version = '([^']+)'", (self._site / "wp-includes/version.php").read_text())
        self.version = told[1] if told else "unknown"
        self.php_version = self._ask([*programs.php, "-r", "echo PHP_VERSION;"])
        shown = re.search(r"Ver (\S+?)-", self._ask([programs.mariadbd, "--no-defaults", "--version"]))
        self.database_version = shown[1] if shown else "unknown"

    def _start_database(self, data: Path, listening: Path) -> None:
        programs = self._programs
        if not (data / "ready").exists():
            shutil.rmtree(data, ignore_errors=True)
            install = programs.base / "bin/mariadb-install-db"
            self._ask(
                [str(install), "--no-defaults", f"--datadir={data}", f"--basedir={programs.base}",
                 "--auth-root-authentication-method=normal", "--skip-test-db", f"--user={_me()}"]
            )  # fmt: skip
            (data / "ready").touch()
        self._spawn(
            [programs.mariadbd, "--no-defaults", f"--datadir={data}", f"--basedir={programs.base}",
             f"--socket={listening}", f"--pid-file={listening}.pid", f"--user={_me()}", "--skip-networking",
             "--innodb-buffer-pool-size=64M", "--performance-schema=OFF", "--skip-log-bin",
             "--innodb-flush-log-at-trx-commit=0"],
            "mariadbd",
        )  # fmt: skip
        client = str(programs.base / "bin/mariadb")
        made = (
            "CREATE DATABASE IF NOT EXISTS wp CHARACTER SET utf8mb4; CREATE USER IF NOT EXISTS wp@localhost;"
            " GRANT ALL ON wp.* TO wp@localhost"
        )
        command = [client, "--no-defaults", "-uroot", f"--socket={listening}", "-e", made]
        self._until(lambda: self._try(command), "MariaDB answers")

    def _dress(self, listening: Path) -> None:
        plugins = self._site / "wp-content" / "mu-plugins"
        plugins.mkdir(parents=True, exist_ok=True)
        shutil.copy(SITE / "stand.php", plugins / "stand.php")
        shutil.copy(SITE / "control.php", self._site / "control.php")
        (self._site / "wp-config.php").write_text(_CONFIG.replace("SOCKET", str(listening)))
        told = self._ask([*self._programs.php, "-ddisplay_errors=0", str(SITE / "install.php"), str(self._site)])
        self.passwords = json.loads(told[told.index("{") :])

    def _start_web(self, www: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._programs.environment["PHP_CLI_SERVER_WORKERS"] = str(WORKERS)
        options = ["-ddisplay_errors=0", "-dopcache.enable_cli=1", "-dupload_max_filesize=16M", "-dpost_max_size=16M"]
        self._spawn([*self._programs.php, *options, "-S", f"127.0.0.1:{port}", "-t", str(www)], "php")
        self._until(self._answers, "WordPress answers")

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/acme/wp-json/", timeout=20) as answer:
                return bool(json.load(answer)["namespaces"])
        except (OSError, ValueError):
            return False

    def _spawn(self, command: list[str], name: str) -> None:
        with (self._logs / f"{name}.log").open("ab") as log:
            self._children.append(
                subprocess.Popen(
                    command, env=self._programs.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )  # fmt: skip

    def _ask(self, command: list[str]) -> str:
        done = subprocess.run(
            command, env=self._programs.environment, capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise Unfetchable(f"{Path(command[0]).name} failed: {said[-1][:200] if said else done.returncode}")
        return done.stdout

    def _try(self, command: list[str]) -> bool:
        return subprocess.run(command, env=self._programs.environment, capture_output=True, check=False).returncode == 0

    def _until(self, look: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + START_SECONDS
        while not look():
            gone = [child for child in self._children if child.poll() is not None]
            if gone or time.monotonic() > end:
                raise Unfetchable(f"not within {START_SECONDS} s: {what} (see {self._logs})")
            time.sleep(0.1)

    def order(self, do: str, **more: Any) -> Any:
        """Look at the ground truth, or edit it."""
        body = json.dumps({"do": do, **more}).encode()
        request = urllib.request.Request(f"{self.url}/acme/control.php", data=body, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def reset(self, meta: Mapping[str, Any]) -> None:
        """Forget every post; the registered meta is this."""
        self.order("reset", meta=dict(meta))

    def stop(self) -> None:
        for child in reversed(self._children):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)  # PHP's workers outlive their parent
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(20)
        self._children = []
        self._stack.close()


def _me() -> str:
    """MariaDB asks root to say that it is meant."""
    return "root" if os.geteuid() == 0 else os.environ.get("USER", "nobody")
