package kernel

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// configMax bounds a configuration, in bytes.
const configMax = 4 << 20

// Fragment is what Build sets in the kernel's configuration, on top of allnoconfig.
//
//go:embed config/bouvet.config
var Fragment []byte

// A config is a kernel's configuration: symbols, with CONFIG_, and their values. One
// that is not set is "n", or absent.
type config map[string]string

// configLine is a line of a .config (Documentation/kbuild/kconfig.rst).
var configLine = regexp.MustCompile(`^(?:# (CONFIG_[A-Za-z0-9_]+) is not set|(CONFIG_[A-Za-z0-9_]+)=(y|m|n|"[^"\n]*"|-?[0-9]+|0[xX][0-9a-fA-F]+))$`)

// parseConfig reads a configuration or a fragment of one. In strict mode each line
// has to be one of a configuration, a comment or empty.
func parseConfig(data []byte, strict bool) (config, error) {
	if len(data) > configMax {
		return nil, fmt.Errorf("cannot read kernel configuration: it has more than %d bytes", configMax)
	}
	c := config{}
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimRight(line, " \t\r\n")
		switch m := configLine.FindStringSubmatch(line); {
		case m != nil && m[1] != "":
			c[m[1]] = "n"
		case m != nil:
			c[m[2]] = m[3]
		case strict && line != "" && line[0] != '#':
			return nil, fmt.Errorf("cannot read kernel configuration: line %d is none: %.80q", n, line)
		}
	}
	return c, nil
}

func (c config) value(symbol string) string {
	if v, ok := c[symbol]; ok {
		return v
	}
	return "n"
}

// format is c as a .config.
func (c config) format() []byte {
	var b bytes.Buffer
	for _, symbol := range slices.Sorted(maps.Keys(c)) {
		if v := c[symbol]; v != "n" {
			fmt.Fprintf(&b, "%s=%s\n", symbol, v)
		} else {
			fmt.Fprintf(&b, "# %s is not set\n", symbol)
		}
	}
	return b.Bytes()
}

// missing tells, in order, what of want does not hold in c.
func (c config) missing(want config) []string {
	var all []string
	for symbol, value := range want {
		if have := c.value(symbol); have != value {
			all = append(all, fmt.Sprintf("%s=%s is %s", symbol, value, have))
		}
	}
	slices.Sort(all)
	return all
}

// features are those that follow from c.
func (c config) features() []Feature {
	var all []Feature
	for _, f := range []struct {
		Feature
		symbol string
	}{
		{MMIOCmdline, "CONFIG_VIRTIO_MMIO_CMDLINE_DEVICES"},
		{Vsock, "CONFIG_VIRTIO_VSOCKETS"},
		{Ext4, "CONFIG_EXT4_FS"},
		{VMGenID, "CONFIG_VMGENID"},
		{NFTables, "CONFIG_NF_TABLES"},
	} {
		if c[f.symbol] == "y" {
			all = append(all, f.Feature)
		}
	}
	return all
}

// needs are the symbols that a guest cannot do without, and the modules that may
// stand in for them.
var needs = []struct{ symbol, module string }{
	{"CONFIG_PVH", ""},
	{"CONFIG_BLK_DEV_INITRD", ""},
	{"CONFIG_DEVTMPFS", ""},
	{"CONFIG_PROC_FS", ""},
	{"CONFIG_SYSFS", ""},
	{"CONFIG_TMPFS", ""},
	{"CONFIG_UNIX98_PTYS", ""},
	{"CONFIG_SERIAL_8250_CONSOLE", ""},
	{"CONFIG_VIRTIO_MMIO", "virtio_mmio"},
	{"CONFIG_VIRTIO_BLK", "virtio_blk"},
	{"CONFIG_VIRTIO_CONSOLE", "virtio_console"},
	{"CONFIG_VIRTIO_VSOCKETS", "vmw_vsock_virtio_transport"},
	{"CONFIG_HW_RANDOM_VIRTIO", "virtio_rng"},
	{"CONFIG_EROFS_FS", "erofs"},
	{"CONFIG_OVERLAY_FS", "overlay"},
}

// unmet tells which needs a kernel of configuration c with these modules does not
// meet.
func (c config) unmet(modules map[string][]byte) []string {
	var all []string
	for _, n := range needs {
		_, have := modules[n.module]
		if v := c.value(n.symbol); v != "y" && (v != "m" || !have) {
			all = append(all, n.symbol+" is "+v)
		}
	}
	if c.value("CONFIG_ACPI") != "y" && c.value("CONFIG_VIRTIO_MMIO_CMDLINE_DEVICES") != "y" {
		all = append(all, "CONFIG_ACPI and CONFIG_VIRTIO_MMIO_CMDLINE_DEVICES are both n")
	}
	return all
}

// embeddedConfig is the configuration that an image with CONFIG_IKCONFIG carries; nil
// if it has none (kernel/configs.c).
func embeddedConfig(image []byte) ([]byte, error) {
	_, packed, ok := bytes.Cut(image, []byte("IKCFG_ST"))
	if !ok || !bytes.HasPrefix(packed, gzipMagic) {
		return nil, nil
	}
	data, err := gunzip(packed, configMax)
	if err != nil {
		return nil, fmt.Errorf("cannot read the kernel's own configuration: %w", err)
	}
	return data, nil
}
