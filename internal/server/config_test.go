package server

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/daemon"
)

func load(t *testing.T, text string, env map[string]string) (Config, error) {
	t.Helper()
	path := ""
	if text != "" {
		path = filepath.Join(t.TempDir(), "bouvet.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Load(path, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err == nil {
		err = c.check()
	}
	return c, err
}

func TestTheEnvironmentCountsMoreThanTheFile(t *testing.T) {
	c, err := load(t, "listen: 127.0.0.1:1\ndrain: 3s\nmax-sandboxes: 7\nallow-hosts: A.lan, b.lan\ndomain: sbx.test:8443\nat-exit: kill\n",
		map[string]string{"BOUVET_LISTEN": "127.0.0.1:2", "BOUVET_MAX_SANDBOXES": "", "BOUVET_LOG_LEVEL": "warn"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:2" || c.Drain != 3*time.Second || c.Limits.PerOwner != 7 || strings.Join(c.AllowHosts, " ") != "a.lan b.lan" ||
		c.TLSListen != "127.0.0.1:8443" || c.AtExit != daemon.CloseKills || c.LogLevel != 4 {
		t.Errorf("loaded %+v", c)
	}
	for _, s := range Settings() {
		if err := s.Set(&c, s.Get(&c)); err != nil {
			t.Errorf("%s cannot be set to what it is: %v", s.Name, err)
		}
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		env        map[string]string
		says       string
	}{
		{"unknown key", "listn: 127.0.0.1:1\n", nil, "bouvet.yaml:1: \"listn\""},
		{"key set twice", "drain: 1s\ndrain: 2s\n", nil, "twice"},
		{"a list", "- listen\n", nil, "mapping"},
		{"a value that is a list", "listen: [a]\n", nil, "one value"},
		{"no YAML", "\t{", nil, "bouvet.yaml"},
		{"two documents", "drain: 1s\n---\ndrain: 2s\n", nil, "one document"},
		{"duration", "drain: soon\n", nil, "duration"},
		{"number", "", map[string]string{"BOUVET_CONNECTIONS": "many"}, "BOUVET_CONNECTIONS"},
		{"number too small", "connections: 0\n", nil, "from 1 on"},
		{"address", "listen: example.com:1\n", nil, "IP address"},
		{"address without a port", "listen: 127.0.0.1\n", nil, "listen"},
		{"relative directory", "state-dir: here\n", nil, "absolute"},
		{"domain without a dot", "domain: localhost\n", nil, "domain"},
		{"domain with a bad port", "domain: sbx.test:0\n", nil, "domain"},
		{"certificate without a domain", "tls-cert: a\n", nil, "without a domain"},
		{"certificate without a key", "domain: sbx.test\ntls-cert: a\n", nil, "belong together"},
		{"end", "at-exit: nothing\n", nil, "none of"},
		{"log", "log-format: xml\n", nil, "neither"},
	} {
		if _, err := load(t, tt.text, tt.env); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none"), os.LookupEnv); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if c, err := load(t, "# nothing\n", nil); err != nil || c.Listen != DefaultListen {
		t.Errorf("empty file: %+v, %v", c, err)
	}
}
