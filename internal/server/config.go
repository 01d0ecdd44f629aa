package server

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/bouvet-run/bouvet/internal/daemon"
)

// Config is what can be set, in a file, the environment and flags; see Settings.
type Config struct {
	// Listen is the TCP address of the API, "none" for none.
	Listen string
	// Domain is the name under which sandboxes are reached by TLS, with the port that
	// clients use if that is not 443: "sbx.test:8443". Empty means no TLS.
	Domain string
	// TLSListen is the address of the TLS listener; the port of Domain on loopback when
	// empty. TLSCert and TLSKey are files in PEM; without them an authority of our own
	// signs a certificate.
	TLSListen, TLSCert, TLSKey string
	// StateDir holds everything; the default one when empty.
	StateDir string
	// ImagesFrom is a state directory whose images are used instead.
	ImagesFrom string
	// Driver is one of local.DriverNames; empty means the default.
	Driver string
	// Drain is how long requests may take to end when the daemon does.
	Drain time.Duration
	// AtExit says what becomes of running sandboxes then.
	AtExit daemon.AtClose
	// AllowHosts are further host names that requests may name.
	AllowHosts []string
	// Connections bounds those of each listener.
	Connections int
	// Limits, MemoryMiB, VCPUs and DiskMiB are those of daemon.Options.
	Limits                    daemon.Limits
	MemoryMiB, VCPUs, DiskMiB int
	// LogFormat is "text" or "json".
	LogFormat string
	LogLevel  slog.Level
}

// Defaults of a Config.
const (
	DefaultListen      = "127.0.0.1:3900"
	DefaultDrain       = 10 * time.Second
	DefaultConnections = 4096
	// NoListener as an address means that there is none.
	NoListener = "none"
)

// DefaultConfig is what holds where nothing is said.
func DefaultConfig() Config {
	return Config{Listen: DefaultListen, Drain: DefaultDrain, AtExit: daemon.CloseLeaves, Connections: DefaultConnections, LogFormat: "text"}
}

// A Setting is something that can be set by its name: as the key of the file, as
// $BOUVET_NAME with underscores, and as the flag --name.
type Setting struct {
	Name, Usage string
	// Set reads a value, and Get shows the one that is set.
	Set func(c *Config, value string) error
	Get func(c *Config) string
}

// Env is the environment variable of the setting.
func (s *Setting) Env() string {
	return "BOUVET_" + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

func text(name, usage string, field func(*Config) *string) Setting {
	return Setting{
		Name: name, Usage: usage,
		Set: func(c *Config, v string) error { *field(c) = v; return nil },
		Get: func(c *Config) string { return *field(c) },
	}
}

func number(name, usage string, low int, field func(*Config) *int) Setting {
	return Setting{
		Name: name, Usage: usage,
		Set: func(c *Config, v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || n < low || n > 1<<30 {
				return fmt.Errorf("%.40q is not a number from %d on", v, low)
			}
			*field(c) = n
			return nil
		},
		Get: func(c *Config) string { return strconv.Itoa(*field(c)) },
	}
}

// Settings are all there are, in the order in which help shows them.
func Settings() []Setting {
	return []Setting{
		text("listen", "TCP `ADDRESS` of the API; \"none\" for the unix socket alone", func(c *Config) *string { return &c.Listen }),
		text("domain", "serve TLS for this `NAME[:PORT]` and every name below it", func(c *Config) *string { return &c.Domain }),
		text("tls-listen", "TCP `ADDRESS` of TLS (default the domain's port on 127.0.0.1)", func(c *Config) *string { return &c.TLSListen }),
		text("tls-cert", "certificate `FILE` (PEM) for the domain and *.domain; made if not given", func(c *Config) *string { return &c.TLSCert }),
		text("tls-key", "private key `FILE` (PEM) of the certificate", func(c *Config) *string { return &c.TLSKey }),
		text("state-dir", "`DIR`ectory for all state", func(c *Config) *string { return &c.StateDir }),
		text("images-from", "use the images of another state `DIR`ectory", func(c *Config) *string { return &c.ImagesFrom }),
		text("driver", "`NAME` of what runs sandboxes", func(c *Config) *string { return &c.Driver }),
		{
			Name: "drain", Usage: "how long requests may take to end at shutdown (`DURATION`)",
			Set: func(c *Config, v string) error {
				d, err := time.ParseDuration(v)
				if err != nil || d < 0 {
					return fmt.Errorf("%.40q is not a duration such as 10s", v)
				}
				c.Drain = d
				return nil
			},
			Get: func(c *Config) string { return c.Drain.String() },
		},
		{
			Name: "at-exit", Usage: "what becomes of running sandboxes at shutdown (`WHAT`): leave, which pauses where they cannot live on, pause, or kill",
			Set: func(c *Config, v string) error {
				if how := daemon.AtClose(v); how == daemon.CloseLeaves || how == daemon.ClosePauses || how == daemon.CloseKills {
					c.AtExit = how
					return nil
				}
				return fmt.Errorf("%.40q is none of %s, %s and %s", v, daemon.CloseLeaves, daemon.ClosePauses, daemon.CloseKills)
			},
			Get: func(c *Config) string { return string(c.AtExit) },
		},
		{
			Name: "allow-hosts", Usage: "further host `NAMES` that requests may be for, with commas",
			Set: func(c *Config, v string) error {
				c.AllowHosts = nil
				for name := range strings.SplitSeq(v, ",") {
					if name = strings.ToLower(strings.TrimSpace(name)); name != "" {
						c.AllowHosts = append(c.AllowHosts, name)
					}
				}
				return nil
			},
			Get: func(c *Config) string { return strings.Join(c.AllowHosts, ",") },
		},
		number("connections", "at most `N` connections to each listener", 1, func(c *Config) *int { return &c.Connections }),
		number("max-sandboxes", "at most `N` running sandboxes of one key; 0 for 100, -1 for no limit", -1, func(c *Config) *int { return &c.Limits.PerOwner }),
		number("max-memory-mib", "at most `N` MiB for all sandboxes; 0 for twice the host's, -1 for no limit", -1, func(c *Config) *int { return &c.Limits.MemoryMiB }),
		number("max-snapshots", "at most `N` paused sandboxes and snapshots of one key; 0 for 1000, -1 for no limit", -1, func(c *Config) *int { return &c.Limits.Snapshots }),
		number("max-vcpus", "at most `N` virtual CPUs of all sandboxes; 0 for 64 for each of the host's, -1 for no limit", -1, func(c *Config) *int { return &c.Limits.VCPUs }),
		number("memory-mib", "`N` MiB of memory for each sandbox; 0 for 512", 0, func(c *Config) *int { return &c.MemoryMiB }),
		number("vcpus", "`N` virtual CPUs for each sandbox; 0 for 2", 0, func(c *Config) *int { return &c.VCPUs }),
		number("disk-mib", "`N` MiB of disk for each sandbox; 0 for files in memory", 0, func(c *Config) *int { return &c.DiskMiB }),
		{
			Name: "log-format", Usage: "`FORMAT` of the log: text or json",
			Set: func(c *Config, v string) error {
				if v != "text" && v != "json" {
					return fmt.Errorf("%.40q is neither text nor json", v)
				}
				c.LogFormat = v
				return nil
			},
			Get: func(c *Config) string { return c.LogFormat },
		},
		{
			Name: "log-level", Usage: "least `LEVEL` of the log: debug, info, warn or error",
			Set: func(c *Config, v string) error { return c.LogLevel.UnmarshalText([]byte(v)) },
			Get: func(c *Config) string { return strings.ToLower(c.LogLevel.String()) },
		},
	}
}

// ErrConfig means that something is set to what it cannot be.
var ErrConfig = errors.New("invalid configuration")

// maxFile bounds a configuration file, in bytes.
const maxFile = 1 << 20

// Load returns the configuration of a file, which may be empty for none, and of the
// environment, which counts more.
func Load(path string, lookupEnv func(string) (string, bool)) (Config, error) {
	c := DefaultConfig()
	settings := Settings()
	if path != "" {
		if err := c.file(path, settings); err != nil {
			return Config{}, err
		}
	}
	for _, s := range settings {
		if v, ok := lookupEnv(s.Env()); ok && v != "" {
			if err := s.Set(&c, v); err != nil {
				return Config{}, fmt.Errorf("%w: %s: %w", ErrConfig, s.Env(), err)
			}
		}
	}
	return c, nil
}

// file reads a YAML mapping of the settings' names to scalars.
func (c *Config) file(path string, settings []Setting) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("cannot read configuration: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var doc yaml.Node
	dec := yaml.NewDecoder(io.LimitReader(f, maxFile))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil // nothing is said
	} else if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrConfig, path, err)
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return fmt.Errorf("%w: %s: a mapping of names to values is needed, such as \"listen: %s\"", ErrConfig, path, DefaultListen)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %s: one document is needed", ErrConfig, path)
	}
	seen := map[string]bool{}
	for pair := range slices.Chunk(doc.Content[0].Content, 2) {
		key, value := pair[0], pair[1]
		at := fmt.Sprintf("%s:%d: %.60q", path, key.Line, key.Value)
		i := slices.IndexFunc(settings, func(s Setting) bool { return s.Name == key.Value })
		switch {
		case i < 0:
			return fmt.Errorf("%w: %s: there is no such setting; bouvet serve --help shows all", ErrConfig, at)
		case seen[key.Value]:
			return fmt.Errorf("%w: %s: it is set twice", ErrConfig, at)
		case value.Kind != yaml.ScalarNode:
			return fmt.Errorf("%w: %s: one value is needed", ErrConfig, at)
		}
		seen[key.Value] = true
		if err := settings[i].Set(c, value.Value); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrConfig, at, err)
		}
	}
	return nil
}

var domainPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$`)

// domain splits Domain into the name and the port.
func (c *Config) domain() (name, port string, err error) {
	name, port = c.Domain, "443"
	if strings.Contains(name, ":") {
		if name, port, err = net.SplitHostPort(c.Domain); err != nil {
			return "", "", err
		}
	}
	if n, perr := strconv.ParseUint(port, 10, 16); perr != nil || n == 0 || !domainPattern.MatchString(name) || len(name) > 180 {
		return "", "", fmt.Errorf("%.80q is not a domain with at least one dot, in lower case, and a port perhaps, such as sbx.test:8443", c.Domain)
	}
	return name, port, nil
}

// check makes the configuration complete.
func (c *Config) check() error {
	invalid := func(setting string, err error) error { return fmt.Errorf("%w: %s: %w", ErrConfig, setting, err) }
	if c.Listen != NoListener {
		if err := checkAddress(c.Listen); err != nil {
			return invalid("listen", err)
		}
	}
	for name, dir := range map[string]string{"state-dir": c.StateDir, "images-from": c.ImagesFrom} {
		if dir != "" && !filepath.IsAbs(dir) {
			return invalid(name, fmt.Errorf("%.200q is not an absolute path", dir))
		}
	}
	if c.Domain == "" {
		for name, v := range map[string]string{"tls-listen": c.TLSListen, "tls-cert": c.TLSCert, "tls-key": c.TLSKey} {
			if v != "" {
				return invalid(name, errors.New("there is no TLS without a domain"))
			}
		}
		return nil
	}
	_, port, err := c.domain()
	if err != nil {
		return invalid("domain", err)
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return invalid("tls-cert", errors.New("a certificate and its key belong together"))
	}
	if c.TLSListen == "" {
		c.TLSListen = net.JoinHostPort("127.0.0.1", port)
	}
	if err := checkAddress(c.TLSListen); err != nil {
		return invalid("tls-listen", err)
	}
	return nil
}

func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if host != "" && host != "localhost" && net.ParseIP(host) == nil {
		return fmt.Errorf("%.80q is not an IP address", host)
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err
}
