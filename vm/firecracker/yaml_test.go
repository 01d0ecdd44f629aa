package firecracker

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// parseYAML reads as much of YAML as Firecracker's API definition has: nested maps
// and lists, plain scalars and lists in brackets. Texts are left out.
func parseYAML(text string) (map[string]any, error) {
	var lines []yamlLine
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		if trimmed != "" && !strings.HasPrefix(trimmed, "#") {
			lines = append(lines, yamlLine{len(line) - len(strings.TrimLeft(line, " ")), trimmed})
		}
	}
	v, rest := parseBlock(lines)
	m, ok := v.(map[string]any)
	if !ok || len(rest) > 0 {
		return nil, fmt.Errorf("cannot read YAML: %d of %d lines are left", len(rest), len(lines))
	}
	return m, nil
}

type yamlLine struct {
	indent int
	text   string
}

// parseBlock reads what is as deep as the first line, or deeper.
func parseBlock(lines []yamlLine) (value any, rest []yamlLine) {
	if len(lines) > 0 && strings.HasPrefix(lines[0].text, "- ") {
		return parseList(lines)
	}
	m, indent := map[string]any{}, 0
	if len(lines) > 0 {
		indent = lines[0].indent
	}
	for len(lines) > 0 && lines[0].indent == indent {
		key, v, _ := strings.Cut(lines[0].text, ":")
		key, v = strings.Trim(key, `"`), strings.TrimSpace(v)
		lines = lines[1:]
		isList := len(lines) > 0 && lines[0].indent == indent && strings.HasPrefix(lines[0].text, "- ")
		switch {
		case key == "description" || key == "summary" || v != "":
			m[key] = scalar(v)
			for len(lines) > 0 && lines[0].indent > indent { // it goes on
				lines = lines[1:]
			}
		case isList || len(lines) > 0 && lines[0].indent > indent:
			m[key], lines = parseBlock(lines)
		}
	}
	return m, lines
}

func parseList(lines []yamlLine) (value any, rest []yamlLine) {
	var list []any
	indent := lines[0].indent
	for len(lines) > 0 && lines[0].indent == indent && strings.HasPrefix(lines[0].text, "- ") {
		item := strings.TrimPrefix(lines[0].text, "- ")
		if strings.HasSuffix(item, ":") || strings.Contains(item, ": ") {
			inner := append([]yamlLine{{indent + 2, item}}, lines[1:]...)
			var v any
			v, lines = parseBlock(inner)
			list = append(list, v)
			continue
		}
		list, lines = append(list, scalar(item)), lines[1:]
	}
	return list, lines
}

func scalar(s string) any {
	if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inner, "]") {
		var list []any
		for item := range strings.SplitSeq(strings.TrimSuffix(inner, "]"), ",") {
			list = append(list, strings.Trim(strings.TrimSpace(item), `"`))
		}
		return list
	}
	return strings.Trim(s, `"`)
}

func TestParseYAML(t *testing.T) {
	got, err := parseYAML(`
# comment
a: "x"
b:
  - one
  - name: two
    of: [p, "q"]
    description:
      some: text
      that goes on
c:
- three
d:
  e: f
    g
  h:
    i: 1
`)
	want := map[string]any{
		"a": "x",
		"b": []any{"one", map[string]any{"name": "two", "of": []any{"p", "q"}, "description": ""}},
		"c": []any{"three"},
		"d": map[string]any{"e": "f", "h": map[string]any{"i": "1"}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}
