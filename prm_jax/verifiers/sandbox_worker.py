"""Runs a worker's file as a program, where it can reach nothing but its pipes.

With namespaces (Linux): a file system of its own, in memory, with the standard
library to read and /tmp to write; no network; no other process to see; the user
nobody, or none with rights; and no way to get any back. In all cases: limits of
memory, of the size and number of files and of the number of processes. It
imports nothing of prm_jax.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import types

_NEWNS, _NEWUTS, _NEWIPC = 0x00020000, 0x04000000, 0x08000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND = 1, 2, 4, 8, 32, 4096
_MOVE, _REC, _PRIVATE = 8192, 16384, 1 << 18
# What statvfs says of a mount, and the flag that keeps it so when it is mounted
# again, which the kernel asks for.
_KEPT = {1024: 1024, 2048: 2048, 4096: 1 << 21, 2: 2, 4: 4, 8: 8}
_SET_PDEATHSIG, _SET_DUMPABLE, _SET_NO_NEW_PRIVS = 1, 4, 38
_CAPABILITY_VERSION = 0x20080522
_NOBODY = 65534
# Of root's sandboxes each has a user of its own: the limit of processes is one
# of all that a user has.
_USERS = 1 << 30
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64")
_SHARED = ("code_wire", "unfinished_code", "tests_text", "asked_candidate")
_FILE_MIB, _FILES, _PROCESSES = 16, 64, 16


def main(
  mode: str, memory_mib: int, readable: str, worker: str, *arguments: str
) -> None:
  """Runs a worker.

  Args:
    mode: namespaces, or limits alone.
    memory_mib: The most memory of a process, in MiB.
    readable: Further paths that it may read, with os.pathsep between them.
    worker: Its file, which has main(*arguments).
    *arguments: Its arguments.
  """
  _add_shared()
  program = _program(worker)
  if mode == "namespaces":
    _enter([x for x in readable.split(os.pathsep) if x])
  _limit(memory_mib, alone=mode == "namespaces")
  module = types.ModuleType("worker")
  exec(program, vars(module))
  module.main(*arguments)


def _add_shared() -> None:
  """Makes the modules of the package that workers import known to them."""
  folder = types.ModuleType("prm_jax.verifiers")
  sys.modules["prm_jax"] = types.ModuleType("prm_jax")
  sys.modules[folder.__name__] = folder
  for name in _SHARED:
    module = types.ModuleType(f"{folder.__name__}.{name}")
    path = os.path.join(os.path.dirname(__file__), f"{name}.py")
    exec(_program(path), vars(module))
    vars(folder)[name] = sys.modules[module.__name__] = module


def _program(path: str) -> types.CodeType:
  with open(path, encoding="utf-8") as f:
    return compile(f.read(), path, "exec")


def _limit(memory_mib: int, *, alone: bool) -> None:
  processes = _PROCESSES
  if not alone:  # the user's other processes count
    processes += sum(x.isdigit() for x in os.listdir("/proc"))
  for what, name, most in (
    (resource.RLIMIT_CORE, "core", 0),
    (resource.RLIMIT_AS, "memory", memory_mib << 20),
    (resource.RLIMIT_FSIZE, "file size", _FILE_MIB << 20),
    (resource.RLIMIT_NOFILE, "open files", _FILES),
    (resource.RLIMIT_NPROC, "processes", processes),
  ):
    try:
      resource.setrlimit(what, (most, most))
    except ValueError:  # who has no rights can't raise a lower one
      own = resource.getrlimit(what)[1]
      raise OSError(f"ulimit of {name} is {own}, {most} are needed") from None


def _enter(readable: list[str]) -> None:
  """Goes into new namespaces, as a process that has no rights there."""
  libc = ctypes.CDLL(None, use_errno=True)
  spaces = _NEWNS | _NEWPID | _NEWNET | _NEWIPC | _NEWUTS
  is_root = os.geteuid() == 0
  if is_root and libc.unshare(spaces):
    # Root without rights, as in a container: another user may make its own. For
    # root the kernel has no limit of processes.
    _change_user(libc)
    is_root = False
  if not is_root and os.geteuid() != 0 and not _has_spaces(libc, spaces):
    _raise("unshare")
  _fork(libc)
  _mount_all(libc, readable)
  if is_root:
    _change_user(libc)
  else:
    _drop_rights(libc)
  if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
    _raise("prctl")
  # No other process of the user may look into this one.
  libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
  # After the change of the user, which clears it.
  libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _change_user(libc: ctypes.CDLL) -> None:
  """Makes root another user, whose the folder is then."""
  user = _USERS + int.from_bytes(os.urandom(3))
  try:
    os.chown(".", user, -1)
  except OSError:  # a container may have few users
    user = _NOBODY
    os.chown(".", user, -1)
  os.setgroups([])
  os.setresgid(_NOBODY, _NOBODY, _NOBODY)
  os.setresuid(user, user, user)
  libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0)  # or its own /proc/self is root's


def _has_spaces(libc: ctypes.CDLL, spaces: int) -> bool:
  """Makes namespaces in one of users; returns whether the kernel allows it."""
  uid, gid = os.geteuid(), os.getegid()
  if libc.unshare(_NEWUSER | spaces):
    return False
  for name, text in (
    ("setgroups", "deny"),
    ("uid_map", f"{uid} {uid} 1"),
    ("gid_map", f"{gid} {gid} 1"),
  ):
    with open(f"/proc/self/{name}", "w") as f:
      f.write(text)
  return True


def _fork(libc: ctypes.CDLL) -> None:
  """Goes on in a child, the first process of its namespace."""
  child = os.fork()
  if child:
    # Its end is this one's; nothing is left open that a reader waits for.
    for fd in range(3):
      os.close(fd)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
  libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _mount_all(libc: ctypes.CDLL, readable: list[str]) -> None:
  """Makes a root in memory: what may be read, /tmp and /dev/null."""
  top = os.getcwd().encode()
  root = top + b"/root"

  def mount(source: bytes, target: bytes, kind: bytes, flags: int, data=b""):
    if libc.mount(source, target, kind, ctypes.c_ulong(flags), data):
      _raise(f"mount {target.decode()}")

  mount(b"none", b"/", b"", _REC | _PRIVATE)
  limits = f"size={_FILE_MIB}m,nr_inodes=512,mode=755".encode()
  mount(b"tmpfs", top, b"tmpfs", _NOSUID | _NODEV, limits)
  os.mkdir(root, 0o755)
  for path in _bound(readable):
    target = root + path.encode()
    if os.path.isdir(path):
      os.makedirs(target, 0o755, exist_ok=True)
    else:
      os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
      os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(path.encode(), target, b"", _BIND | _REC)
    kept = os.statvfs(path).f_flag
    flags = sum(flag for bit, flag in _KEPT.items() if kept & bit)
    flags |= _BIND | _REMOUNT | _RDONLY | _NOSUID | _NODEV
    mount(b"none", target, b"", flags)
  os.makedirs(root + b"/tmp", 0o755, exist_ok=True)
  os.chmod(root + b"/tmp", 0o1777)
  os.mkdir(root + b"/dev", 0o755)
  os.close(os.open(root + b"/dev/null", os.O_CREAT | os.O_WRONLY, 0o666))
  mount(b"/dev/null", root + b"/dev/null", b"", _BIND)
  os.chdir(top)
  mount(top, b"/", b"", _MOVE)
  os.chroot(".")
  # Below the root of its mounts: from there the kernel makes no namespace of
  # users, in which the code would have rights again.
  os.chroot("root")
  os.chdir("/tmp")


def _bound(readable: list[str]) -> list[str]:
  """Returns these paths and those that the standard library's programs read."""
  paths = {*readable, os.path.realpath(sys.base_prefix)}
  paths |= {os.path.dirname(os.path.realpath(os.__file__))}
  paths |= {x for x in _LIBRARIES if os.path.isdir(x)}
  return [
    x
    for x in sorted(paths)
    if not any(x.startswith(f"{other}/") for other in paths - {x})
  ]


def _drop_rights(libc: ctypes.CDLL) -> None:
  header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
  if libc.capset(header, (ctypes.c_uint32 * 6)()):
    _raise("capset")


def _raise(what: str) -> None:
  number = ctypes.get_errno()
  raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
  main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
