package gvisor

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// readable is a copy of an image or a program that every user can use.
func readable(t *testing.T, path string) string {
	t.Helper()
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	out, err := os.CreateTemp(scratch, "readable-")
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Chmod(0o555), out.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(out.Name()) })
	return out.Name()
}

// An unprivileged user gets a machine where the host allows user namespaces.
func TestRootless(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become somebody else, and the other tests are unprivileged already: `sudo -E go test ./vm/gvisor`")
	}
	const nobody = 65534
	probe := exec.Command("unshare", "--user", "--map-root-user", "true")
	probe.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if err := probe.Run(); err != nil {
		t.Skipf("user namespaces are off for unprivileged users (%v): `sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000`", err)
	}
	d := testDriver(t)
	state := filepath.Join(scratch, "rootless-"+newID())
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(state) })
	if err := os.Chown(state, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	c := savable(t)
	c.Image = readable(t, c.Image)
	opts := options(d)
	opts.StateDir = state
	if opts.Exe != "/proc/self/exe" { // perhaps in a directory that is root's alone
		opts.Exe = readable(t, opts.Exe)
	}
	saved := filepath.Join(state, "saved")
	attr := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if err := errors.Join(os.Mkdir(saved, 0o700), os.Chown(saved, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	d.keeper.Base = filepath.Join(state, "machines")
	for _, o := range []orders{
		{Save: saved, Ask: "id -u; chown 1000:1000 /tmp && stat -c %u /tmp"},
		{From: saved, Ask: "id -u; stat -c %u /tmp"},
	} {
		o.Options, o.Config = opts, c
		o.Config.ID = newID()
		child := startOwner(t, o, attr)
		if want := `ready "0\n1000\n" <nil> limited=false`; child.said != want {
			t.Errorf("got %s, want %s", child.said, want)
		}
		_ = child.stdin.Close()
		if err := child.cmd.Wait(); err != nil {
			t.Error(err)
		}
		wantNothing(t, d, o.Config.ID)
	}
}
