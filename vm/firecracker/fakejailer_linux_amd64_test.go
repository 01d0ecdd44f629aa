package firecracker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A fakeSetup is what the fakes of Firecracker and of its jailer are told. It lies
// beside them, for their environment is taken from them.
type fakeSetup struct {
	Version, Jailer string
	// Fault is what goes wrong, and At the path of the request at which it does.
	Fault, At string
}

const (
	fakeSetupName = "fake.json"
	// The fake jailer cannot change its root: the commands of the fake guest are those
	// of this host. So it tells where the root would be, and whose.
	fakeRootVar, fakeUserVar, fakeDirVar = "FAKE_ROOT", "FAKE_USER", "FAKE_DIR"
)

// fakes turns the process into the fake that it was started as.
func fakes() {
	switch filepath.Base(os.Args[0]) {
	case Program:
		os.Exit(fakeFirecracker(os.Args[1:]))
	case JailerProgram:
		os.Exit(fakeJailer(os.Args[1:]))
	}
}

func readSetup(dir string) fakeSetup {
	var s fakeSetup
	data, err := os.ReadFile(filepath.Join(dir, fakeSetupName))
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		panic(err)
	}
	return s
}

// parseFlags is strict, as the real programs are: a flag has to be known, is given
// once, and has a value if it takes one. What is behind "--" is rest.
func parseFlags(args []string, valued, plain string) (flags map[string]string, rest []string, err error) {
	flags = map[string]string{}
	for len(args) > 0 {
		name, ok := strings.CutPrefix(args[0], "--")
		if name == "" && ok {
			return flags, args[1:], nil
		}
		_, twice := flags[name]
		isValued := strings.Contains(" "+valued+" ", " "+name+" ")
		switch {
		case !ok || !isValued && !strings.Contains(" "+plain+" ", " "+name+" "):
			return nil, nil, fmt.Errorf("found argument '%s' which wasn't expected", args[0])
		case twice:
			return nil, nil, fmt.Errorf("the argument '%s' was provided more than once", name)
		case isValued && len(args) < 2:
			return nil, nil, fmt.Errorf("the argument '%s' requires a value", name)
		case isValued:
			flags[name], args = args[1], args[2:]
		default:
			flags[name], args = "", args[1:]
		}
	}
	return flags, nil, nil
}

// fakeJailer does in the order of docs/jailer.md what the jailer does, but for the
// change of the root and of the user.
func fakeJailer(args []string) int {
	runtime.LockOSThread() // namespaces are a thread's
	flags, extra, err := parseFlags(args, "id exec-file uid gid chroot-base-dir netns cgroup-version parent-cgroup resource-limit", "daemonize new-pid-ns version")
	if err == nil {
		if _, ok := flags["version"]; ok {
			exe, _ := os.Executable()
			fmt.Printf("Jailer v%s\n", readSetup(filepath.Dir(exe)).Jailer)
			return 0
		}
		err = jailAndExec(flags, extra)
	}
	fmt.Fprintln(os.Stderr, "jailer:", err)
	return 1
}

func jailAndExec(flags map[string]string, extra []string) error {
	for _, required := range []string{"id", "exec-file", "uid", "gid"} {
		if flags[required] == "" {
			return fmt.Errorf("the argument '%s' is required", required)
		}
	}
	id := flags["id"]
	if len(id) > 64 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") != "" {
		return fmt.Errorf("invalid instance ID: %s", id)
	}
	uid, err := strconv.ParseUint(flags["uid"], 10, 32)
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(flags["gid"], 10, 32)
	if err != nil {
		return err
	}
	exe, err := filepath.EvalSymlinks(flags["exec-file"])
	if err != nil {
		return err
	}
	setup := readSetup(filepath.Dir(exe))
	if setup.Fault == "jailer fails" {
		return errors.New("failed to do what was asked")
	}
	base := flags["chroot-base-dir"]
	if base == "" {
		base = "/srv/jailer"
	}
	root := filepath.Join(base, filepath.Base(exe), id, "root")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	jailed := filepath.Join(root, filepath.Base(exe))
	if err := copyProgram(exe, jailed); err != nil {
		return err
	}
	before, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return err
	}
	old := filepath.Join(root, "old_root")
	if err := os.Mkdir(old, 0o600); err != nil {
		return fmt.Errorf("failed to create the jail root directory before pivoting root: %w", err)
	}
	if err := os.Remove(old); err != nil {
		return err
	}
	for _, dir := range []string{"", "dev", "dev/net", "run"} {
		path := filepath.Join(root, dir)
		if err := errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, 0o700), os.Chown(path, int(uid), int(gid))); err != nil {
			return err
		}
	}
	for name, minor := range map[string]uint32{"dev/net/tun": 200, "dev/kvm": 232} {
		path := filepath.Join(root, name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(10, minor))); err != nil {
			return fmt.Errorf("failed to create %s via mknod inside the jail: %w", name, err)
		}
		if err := os.Chown(path, int(uid), int(gid)); err != nil {
			return err
		}
	}
	pid, err := os.OpenFile(jailed+".pid", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprint(pid, os.Getpid()); err != nil {
		return err
	}
	if err := mountProc(before); err != nil {
		return err
	}
	argv := append([]string{"/" + filepath.Base(exe), "--id", id, "--start-time-us", "1", "--start-time-cpu-us", "1", "--parent-cpu-time-us", "1"}, extra...)
	env := []string{fakeRootVar + "=" + root, fakeUserVar + "=" + flags["uid"], fakeDirVar + "=" + filepath.Dir(exe), "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	return unix.Exec(jailed, argv, env)
}

func copyProgram(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o755)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dst.Fd()), &st); err != nil || st.Nlink > 1 {
		return fmt.Errorf("%s is a hard link, %w", to, err)
	}
	// Tens of megabytes each time otherwise.
	if err := os.Remove(to); err != nil {
		return err
	}
	if os.Link(from, to) == nil {
		return dst.Close()
	}
	if dst, err = os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755); err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// mountProc shows the guest's commands, which are of this host's programs, the
// processes of this namespace alone.
func mountProc(before string) error {
	if now, err := os.Readlink("/proc/thread-self/ns/mnt"); err != nil || now == before {
		return fmt.Errorf("this is another's mount namespace, %w", err)
	}
	return unix.Mount("proc", "/proc", "proc", 0, "")
}

// The fake is as strict as it says.
func TestParseFlags(t *testing.T) {
	for _, tt := range []struct {
		args string
		ok   bool
	}{
		{"--id x --flag -- rest --id", true},
		{"--id x --id y", false},
		{"--id", false},
		{"--unknown", false},
		{"-id x", false},
		{"id x", false},
		{"--no-seccomp --id x", false},
	} {
		flags, _, err := parseFlags(strings.Fields(tt.args), "id", "flag")
		if (err == nil) != tt.ok || (tt.ok && flags["id"] != "x") {
			t.Errorf("%q: got %v, %v", tt.args, flags, err)
		}
	}
}
