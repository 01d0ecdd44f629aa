package proc

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func useDatabases(t *testing.T, passwd, group string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	oldPasswd, oldGroup := passwdFile, groupFile
	t.Cleanup(func() { passwdFile, groupFile = oldPasswd, oldGroup })
	passwdFile, groupFile = filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	for name, text := range map[string]string{passwdFile: passwd, groupFile: group} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLookUpUser(t *testing.T) {
	useDatabases(t, strings.Join([]string{
		"root:x:0:0:root:/root:/bin/bash",
		"# comment:x:5:5::/:",
		"short:x:7",
		"bad:x:minus:5::/:/bin/sh",
		"user:x:1000:1001:A User,,,:/home/user:/bin/bash\r",
		"homeless:x:1002:1002:::",
		"4711:x:1003:1003::/home/number:",
	}, "\n"), strings.Join([]string{
		"root:x:0:",
		"user:x:1001:",
		"sudo:x:27:other,user",
		"docker:x:28:user",
		"primary:x:1001:user",
		"none:x:29:users,user2",
		"bad:x:what:user",
	}, "\n"))
	for _, c := range []struct {
		spec string
		want Account
		err  string
	}{
		{"root", Account{Name: "root", Home: "/root"}, ""},
		{"user", Account{"user", 1000, 1001, []uint32{27, 28}, "/home/user"}, ""},
		{"1000", Account{"user", 1000, 1001, []uint32{27, 28}, "/home/user"}, ""},
		{"user:docker", Account{Name: "user", UID: 1000, GID: 28, Home: "/home/user"}, ""},
		{"user:5", Account{Name: "user", UID: 1000, GID: 5, Home: "/home/user"}, ""},
		{"1000:1000", Account{Name: "user", UID: 1000, GID: 1000, Home: "/home/user"}, ""},
		{"homeless", Account{Name: "homeless", UID: 1002, GID: 1002, Home: "/"}, ""},
		{"4711", Account{Name: "4711", UID: 1003, GID: 1003, Home: "/home/number"}, ""},
		{"5000", Account{Name: "5000", UID: 5000, Home: "/"}, ""},
		{"5000:6000", Account{Name: "5000", UID: 5000, GID: 6000, Home: "/"}, ""},
		{"nobody", Account{}, `unknown user "nobody"`},
		{"short", Account{}, `unknown user "short"`},
		{"bad", Account{}, `unknown user "bad"`},
		{"-1", Account{}, `unknown user "-1"`},
		{"+0", Account{}, `unknown user "+0"`},
		{"4294967295", Account{}, `unknown user "4294967295"`},
		{"4294967296", Account{}, `unknown user "4294967296"`},
		{"user:none-such", Account{}, `unknown group "none-such"`},
		{":0", Account{}, `bad user ":0": want a name or a number, or user:group`},
		{"user:", Account{}, `bad user "user:": want a name or a number, or user:group`},
	} {
		got, err := LookUpUser(c.spec)
		switch {
		case c.err != "":
			if err == nil || err.Error() != c.err {
				t.Errorf("%q: got %+v, %v, want %s", c.spec, got, err, c.err)
			}
		case err != nil:
			t.Errorf("%q: %v", c.spec, err)
		case !reflect.DeepEqual(*got, c.want):
			t.Errorf("%q: got %+v, want %+v", c.spec, *got, c.want)
		}
	}
}

// A guest can make anything of its user database.
func TestLookUpUserWithoutDatabase(t *testing.T) {
	dir := useDatabases(t, "", "")
	for _, make := range []func() error{
		func() error { return nil },
		func() error { return os.Remove(passwdFile) },
		func() error { return unix.Mkfifo(passwdFile, 0o600) },
		func() error { passwdFile = dir; return nil },
		func() error { passwdFile = "/dev/zero"; return nil },
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		if got, err := LookUpUser("17"); err != nil || got.UID != 17 {
			t.Errorf("%s: got %+v, %v", passwdFile, got, err)
		}
		if _, err := LookUpUser("root"); err == nil {
			t.Errorf("%s: root was found", passwdFile)
		}
	}
}

func TestRunAsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("changing users needs root: run the tests as root")
	}
	useDatabases(t, "someone:x:12345:12346::/nowhere:", "a:x:12347:someone\nb:x:12346:\n")
	m := newManager(t, Options{})
	stdout, _, status := run(t, m, Spec{Args: sh("id -u; id -G; echo $HOME $USER $LOGNAME $A"), User: "someone", Env: []string{"A=b"}})
	if want := "12345\n12346 12347\n/nowhere someone someone b\n"; stdout != want || status != (Status{}) {
		t.Errorf("got %q, %+v, want %q", stdout, status, want)
	}
	if p, err := m.Start(Spec{Args: []string{"/bin/true"}, User: "someone", Dir: "/root"}); err == nil {
		_ = p.Stdout().Close()
		_ = p.Stderr().Close()
		t.Log("the directory /root is open to everybody here")
	} else if got, want := err.Error(), "fork/exec /bin/true: permission denied"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestEnvironment(t *testing.T) {
	account := &Account{Name: "u", Home: "/h"}
	for _, c := range []struct {
		name        string
		base, added []string
		account     *Account
		tty         bool
		want        []string
	}{
		{"defaults", nil, nil, nil, false, []string{"PATH=" + defaultPath}},
		{"last wins", []string{"PATH=/a", "A=1", "B=1"}, []string{"A=2", "A=3"}, nil, false, []string{"PATH=/a", "B=1", "A=3"}},
		{"user before caller", []string{"HOME=/root", "PATH=/p"}, []string{"HOME=/mine"}, account, false, []string{"PATH=/p", "USER=u", "LOGNAME=u", "HOME=/mine"}},
		{"terminal", []string{"PATH=/p"}, nil, nil, true, []string{"TERM=xterm-256color", "PATH=/p"}},
		{"terminal of our own", []string{"PATH=/p", "TERM=linux"}, nil, nil, true, []string{"PATH=/p", "TERM=linux"}},
		{"no value", []string{"PATH=/p"}, []string{"A=", "B"}, nil, false, []string{"PATH=/p", "A=", "B"}},
	} {
		if got := environment(c.base, c.added, c.account, c.tty); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
