package statedir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLocate(t *testing.T) {
	tests := []struct {
		name    string
		euid    int
		env     map[string]string
		home    string
		want    string
		wantErr string
	}{
		{name: "override wins for root", euid: 0, env: map[string]string{EnvVar: "/srv/b"}, want: "/srv/b"},
		{name: "override wins for a user", euid: 1000, env: map[string]string{EnvVar: "/srv/b/"}, home: "/home/u", want: "/srv/b"},
		{name: "root", euid: 0, env: map[string]string{"XDG_STATE_HOME": "/x"}, want: "/var/lib/bouvet"},
		{name: "xdg", euid: 1000, env: map[string]string{"XDG_STATE_HOME": "/x"}, home: "/home/u", want: "/x/bouvet"},
		{name: "home", euid: 1000, home: "/home/u", want: "/home/u/.local/state/bouvet"},
		{name: "relative override", euid: 0, env: map[string]string{EnvVar: "state"}, wantErr: EnvVar},
		{name: "relative xdg", euid: 1000, env: map[string]string{"XDG_STATE_HOME": "x"}, wantErr: "XDG_STATE_HOME"},
		{name: "relative home", euid: 1000, home: "u", wantErr: "HOME"},
		{name: "no home", euid: 1000, wantErr: "set " + EnvVar},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := locate(tt.euid, func(k string) string { return tt.env[k] }, func() (string, error) {
				if tt.home == "" {
					return "", errors.New("no home")
				}
				return tt.home, nil
			})
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("error = %v, want one naming %q", err, tt.wantErr)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("locate = %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

func TestSubdirectories(t *testing.T) {
	base := filepath.Join(t.TempDir(), "state")
	t.Setenv(EnvVar, base)
	for name, f := range map[string]func(string) (string, error){"images": Images, "machines": Machines, "agent": Agent} {
		for range 2 {
			got, err := f("")
			if want := filepath.Join(base, name); err != nil || got != want {
				t.Fatalf("%s = %q, %v, want %q", name, got, err, want)
			}
		}
		info, err := os.Stat(filepath.Join(base, name))
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: mode %v, %v, want 0700", name, info.Mode(), err)
		}
	}
	if _, err := Images("relative"); err == nil {
		t.Error("Images(relative) succeeded, want an error")
	}
}

// T44: a directory that others prepared is refused.
func TestPrivate(t *testing.T) {
	t.Run("T44 writable by others", func(t *testing.T) {
		base := t.TempDir()
		if err := os.Chmod(base, 0o777); err != nil {
			t.Fatal(err)
		}
		if _, err := Images(base); err == nil || !strings.Contains(err.Error(), "chmod") {
			t.Errorf("error = %v, want one that names chmod", err)
		}
	})
	t.Run("T44 symbolic link", func(t *testing.T) {
		base, elsewhere := t.TempDir(), t.TempDir()
		if err := os.Symlink(elsewhere, filepath.Join(base, "images")); err != nil {
			t.Fatal(err)
		}
		if _, err := Images(base); err == nil || !strings.Contains(err.Error(), "not a directory") {
			t.Errorf("error = %v, want a refusal", err)
		}
	})
	t.Run("T44 other owner", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root to give a directory away: run `sudo go test ./internal/statedir`")
		}
		base := t.TempDir()
		if err := os.Chown(base, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if _, err := Images(base); err == nil || !strings.Contains(err.Error(), "uid 12345") {
			t.Errorf("error = %v, want a refusal naming the owner", err)
		}
	})
}
