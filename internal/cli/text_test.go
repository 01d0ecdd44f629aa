package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"syscall"
	"testing"
	"unicode"
	"unicode/utf8"
)

// T23, T51.
func TestPrintable(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"plain ünïcode 漢字", "plain ünïcode 漢字"},
		{"a\nb\r\tc", `a\nb\r\tc`},
		{"\x1b[31mred\x1b]0;title\x07", `\x1b[31mred\x1b]0;title\x07`},
		{"\u009b31m", `\u009b31m`},
		{"\u202egnp.exe", `\u202egnp.exe`},
		{"\xff\xfe", `\xff\xfe`},
		{"\u2028", `\u2028`},
		{"\U000e0041", `\U000e0041`},
		{"a\x00b\x7f", `a\x00b\x7f`},
		{"", ""},
	} {
		if got := printable(tt.in, 1000); got != tt.want {
			t.Errorf("printable(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
	long := printable(strings.Repeat("x", 1<<20), maxMessage)
	if len(long) > maxMessage+40 || !strings.HasSuffix(long, "bytes more)") {
		t.Errorf("a message of 1 MiB became one of %d bytes, want at most %d and a note", len(long), maxMessage)
	}
}

// T23: valid JSON with the same meaning, in which nothing drives a terminal.
func TestWriteJSONEscapes(t *testing.T) {
	hostile := "\x1b[2J\u009b31m\u202e\U000e0041 <&> ü 漢 \u007f"
	var b bytes.Buffer
	if err := writeJSON(&b, map[string]string{"text": hostile}); err != nil {
		t.Fatal(err)
	}
	for _, r := range b.String() {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("output %q contains %U", b.String(), r)
		}
	}
	var got map[string]string
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got["text"] != hostile {
		t.Errorf("read back %q, want %q", got["text"], hostile)
	}
}

func TestParseSize(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want int64
	}{
		{"512M", 512 << 20},
		{"512m", 512 << 20},
		{"512MiB", 512 << 20},
		{"512mb", 512 << 20},
		{"1.5G", 3 << 29},
		{"2T", 2 << 40},
		{"64k", 64 << 10},
		{"1024", 1024},
		{"10B", 10},
		{" 1G ", 1 << 30},
	} {
		got, err := parseSize(tt.in)
		if err != nil || int64(got) != tt.want {
			t.Errorf("parseSize(%q) = %d, %v, want %d", tt.in, got, err, tt.want)
		}
	}
	for _, bad := range []string{"", "M", "lots", "-1M", "1e30", "0x10M", "NaN", "Inf", "1 000M", "9999999T", "5MM", "1_0M", "\x1b[31m"} {
		if got, err := parseSize(bad); err == nil {
			t.Errorf("parseSize(%q) = %d, want an error", bad, got)
		}
	}
	for want, in := range map[string]int64{"512M": 512 << 20, "1G": 1 << 30, "1000": 1000, "0": 0} {
		b := byteSize(in)
		if got := b.String(); got != want {
			t.Errorf("byteSize(%d).String() = %q, want %q", in, got, want)
		}
	}
}

func TestHumanSize(t *testing.T) {
	for in, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 328_700_000: "328.7 MB", 999_999: "1.0 MB", 5 << 40: "5.5 TB"} {
		if got := humanSize(in); got != want {
			t.Errorf("humanSize(%d) = %q, want %q", in, got, want)
		}
	}
}

func TestTimeLimit(t *testing.T) {
	for in, want := range map[string]string{"30s": "30s", "30": "30s", "1.5": "1.5s", "5m": "5m0s", "250ms": "250ms", "0": ""} {
		var l timeLimit
		if err := l.Set(in); err != nil || l.String() != want {
			t.Errorf("Set(%q) gives %q, %v, want %q", in, l.String(), err, want)
		}
	}
	for _, bad := range []string{"", "soon", "1 h", "NaN"} {
		var l timeLimit
		if err := l.Set(bad); err == nil {
			t.Errorf("Set(%q) gives %v, want an error", bad, l.d)
		}
	}
}

func TestEnvironment(t *testing.T) {
	dir := t.TempDir()
	file := writeFile(t, dir, "env", "# comment\n\nA=1\n  B=two words \nHOME\nMISSING\r\nC=x=y\n")
	lookup := func(key string) (string, bool) { return "/home/here", key == "HOME" }

	got, err := environment([]string{file}, []string{"A=2", "EMPTY="}, lookup)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"B=two words ", "HOME=/home/here", "C=x=y", "A=2", "EMPTY="}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, bad := range []string{"", "=x", "A B=c", "A\n=1", "A=\x00"} {
		if got, err := environment(nil, []string{bad}, lookup); err == nil {
			t.Errorf("environment(%q) = %q, want an error", bad, got)
		}
	}
	if _, err := environment([]string{dir + "/none"}, nil, lookup); err == nil {
		t.Error("a missing environment file is no error, want one")
	}
	big := writeFile(t, dir, "big", "A="+strings.Repeat("x", maxEnvFile))
	if _, err := environment([]string{big}, nil, lookup); err == nil {
		t.Error("an environment file over the limit is no error, want one")
	}
}

func TestNameOf(t *testing.T) {
	for in, want := range map[string]string{
		"/tmp/Root FS.tar.gz": "root-fs", "alpine.tar.zst": "alpine", "x.tgz": "x", "/a/b/": "b", "-": "",
		"\x1b[31m.tar": "31m", "...": "",
	} {
		if got := nameOf(in); got != want {
			t.Errorf("nameOf(%q) = %q, want %q", in, got, want)
		}
	}
}

// T05, T23: the outcome of a run is what the encoder of this package would write, without
// being in memory.
func TestWriteOutcome(t *testing.T) {
	for _, text := range []string{
		"", "plain\n", "\"quoted\" \\ \b\f\n\r\t\x00\x1b\x7f", "\u202e\u2028\u0085é漢\U0001f600\U000e0001",
		"a\xff\xfe\xffb\xf0\x9f", "\uFFFD\xff", "</script>&",
	} {
		o := &outcome{ExitCode: -1, stdout: []byte(text), stderr: []byte(text + text)}
		o.Image, o.Error = "sha256:x", &jsonError{Kind: "k", Message: text}
		var got bytes.Buffer
		if err := o.write(&got); err != nil {
			t.Fatal(err)
		}
		want := *o
		want.Stdout, want.Stderr = strings.ToValidUTF8(text, "\uFFFD"), strings.ToValidUTF8(text+text, "\uFFFD")
		if !utf8.ValidString(text) {
			want.StdoutBase64 = base64.StdEncoding.EncodeToString([]byte(text))
			want.StderrBase64 = base64.StdEncoding.EncodeToString([]byte(text + text))
		}
		var decoded outcome
		if err := json.Unmarshal(got.Bytes(), &decoded); err != nil {
			t.Fatalf("%q: %v in %s", text, err, got.String())
		}
		if decoded.Stdout != want.Stdout || decoded.Stderr != want.Stderr || decoded.StdoutBase64 != want.StdoutBase64 ||
			decoded.StderrBase64 != want.StderrBase64 || decoded.ExitCode != -1 || decoded.Image != want.Image {
			t.Errorf("%q: got %+v, want %+v", text, decoded, want)
		}
		for _, r := range got.String() {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%q: %U is in the output", text, r)
			}
		}
	}
	if err := (&outcome{}).write(brokenPipe{}); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("got %v, want %v", err, syscall.EPIPE)
	}
}
