package kernel

import (
	"bytes"
	"compress/gzip"
	"slices"
	"strings"
	"testing"
)

func TestParseConfig(t *testing.T) {
	c, err := parseConfig([]byte("# a comment\n\nCONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=\"a b\"\nCONFIG_D=0x10\nCONFIG_E=-1\nCONFIG_F=m\r\n"), true)
	if err != nil {
		t.Fatal(err)
	}
	for symbol, want := range map[string]string{
		"CONFIG_A": "y", "CONFIG_B": "n", "CONFIG_C": `"a b"`, "CONFIG_D": "0x10", "CONFIG_E": "-1", "CONFIG_F": "m", "CONFIG_G": "n",
	} {
		if got := c.value(symbol); got != want {
			t.Errorf("%s: got %s, want %s", symbol, got, want)
		}
	}
	if again, err := parseConfig(c.format(), true); err != nil || len(again.missing(c))+len(c.missing(again)) > 0 {
		t.Errorf("formatted and read again: got %v, %v", again, err)
	}
	want := config{"CONFIG_A": "m", "CONFIG_B": "n", "CONFIG_G": "y", "CONFIG_H": "n"}
	if got := c.missing(want); !slices.Equal(got, []string{"CONFIG_A=m is y", "CONFIG_G=y is n"}) {
		t.Errorf("missing: got %q", got)
	}
	for _, bad := range []string{
		"A=y", "CONFIG_A", "CONFIG_A=yes", "CONFIG_A=\"x", "CONFIG_A=y # x", "\x7fELF", "CONFIG_A=1" + strings.Repeat("x", 70000),
		strings.Repeat("#\n", configMax/2+1),
	} {
		if _, err := parseConfig([]byte(bad), true); err == nil {
			t.Errorf("%.20q: got no error", bad)
		}
	}
}

// What we build is what drivers want, by the configuration that we ask for.
func TestFragment(t *testing.T) {
	c, err := parseConfig(Fragment, true)
	if err != nil {
		t.Fatal(err)
	}
	if unmet := c.unmet(nil); len(unmet) > 0 {
		t.Errorf("a guest cannot run on it: %v", unmet)
	}
	if got, want := c.features(), []Feature{MMIOCmdline, Vsock, Ext4, VMGenID, NFTables}; !slices.Equal(got, want) {
		t.Errorf("features: got %v, want %v", got, want)
	}
	if lines := bytes.Count(Fragment, []byte("\nCONFIG_")); len(c) < lines {
		t.Errorf("%d symbols in %d lines: one is there twice", len(c), lines)
	}
}

func TestUnmet(t *testing.T) {
	c, err := parseConfig(Fragment, true)
	if err != nil {
		t.Fatal(err)
	}
	c["CONFIG_EROFS_FS"], c["CONFIG_OVERLAY_FS"], c["CONFIG_PVH"] = "m", "m", "m"
	got := c.unmet(map[string][]byte{"erofs": nil, "pvh": nil})
	if want := []string{"CONFIG_PVH is m", "CONFIG_OVERLAY_FS is m"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	c["CONFIG_ACPI"], c["CONFIG_VIRTIO_MMIO_CMDLINE_DEVICES"] = "n", "n"
	if got := c.unmet(nil); !strings.Contains(strings.Join(got, ","), "both n") {
		t.Errorf("no way to find devices: got %q", got)
	}
}

// withConfig is an image that carries its configuration, as CONFIG_IKCONFIG makes it.
func withConfig(text string) []byte {
	var b bytes.Buffer
	b.Write(vmlinux())
	b.WriteString("IKCFG_ST")
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text))
	_ = z.Close()
	b.WriteString("IKCFG_ED")
	return b.Bytes()
}

func TestEmbeddedConfig(t *testing.T) {
	if got, err := embeddedConfig(withConfig("CONFIG_A=y\n")); err != nil || string(got) != "CONFIG_A=y\n" {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := embeddedConfig(vmlinux()); err != nil || got != nil {
		t.Errorf("none: got %q, %v", got, err)
	}
	if _, err := embeddedConfig(withConfig(strings.Repeat("#\n", configMax))); err == nil {
		t.Error("a bomb: got no error")
	}
	whole := withConfig("CONFIG_A=y\n")
	if _, err := embeddedConfig(whole[:len(whole)-20]); err == nil {
		t.Error("cut off: got no error")
	}
}
