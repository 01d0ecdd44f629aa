package firecracker

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/bouvet-run/bouvet/vm"
)

// swaggerEnv names the directory with Firecracker's published API definitions, one
// file for each release that is supported: firecracker-vX.Y.swagger.yaml.
const swaggerEnv = "BOUVET_FIRECRACKER_SWAGGER"

// A swagger is the API definition of one release.
type swagger struct {
	testing.TB
	version     Version
	paths, defs map[string]any
}

// definitions reads those that there are.
func definitions(t *testing.T) []*swagger {
	t.Helper()
	dir := os.Getenv(swaggerEnv)
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	files, err := filepath.Glob(filepath.Join(dir, "firecracker-v*.swagger.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skipf("no API definitions in %s: set BOUVET_FIRECRACKER_SWAGGER to a directory with firecracker-vX.Y.swagger.yaml, as Firecracker publishes it", dir)
	}
	var all []*swagger
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := parseYAML(string(text))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		s := &swagger{TB: t}
		s.paths, _ = doc["paths"].(map[string]any)
		s.defs, _ = doc["definitions"].(map[string]any)
		info, _ := doc["info"].(map[string]any)
		if s.version, err = ParseVersion(fmt.Sprint(info["version"])); err != nil || len(s.paths) == 0 || len(s.defs) == 0 {
			t.Fatalf("%s: got version %v, %v, %d paths, %d definitions", file, s.version, err, len(s.paths), len(s.defs))
		}
		all = append(all, s)
	}
	return all
}

// resolve follows a reference to a definition.
func (s *swagger) resolve(schema map[string]any) map[string]any {
	s.Helper()
	ref, ok := schema["$ref"].(string)
	if !ok {
		return schema
	}
	def, ok := s.defs[strings.TrimPrefix(ref, "#/definitions/")].(map[string]any)
	if !ok {
		s.Fatalf("there is no %s", ref)
	}
	return def
}

// body is the schema of a request's body.
func (s *swagger) body(method, path string) map[string]any {
	s.Helper()
	if strings.HasPrefix(path, pathDrives) {
		path = pathDrives + "{drive_id}"
	}
	methods, _ := s.paths[path].(map[string]any)
	operation, _ := methods[strings.ToLower(method)].(map[string]any)
	parameters, _ := operation["parameters"].([]any)
	for _, p := range parameters {
		p, _ := p.(map[string]any)
		if schema, ok := p["schema"].(map[string]any); ok && p["in"] == "body" {
			return s.resolve(schema)
		}
	}
	s.Fatalf("%v: there is no body of %s %s", s.version, method, path)
	return nil
}

// check compares a value that is sent with its schema.
func (s *swagger) check(where string, schema map[string]any, value any) {
	s.Helper()
	schema = s.resolve(schema)
	if enum, ok := schema["enum"].([]any); ok && !slices.Contains(enum, value) {
		s.Errorf("%s is %v, want one of %v", where, value, enum)
	}
	fine := false
	switch schema["type"] {
	case "string":
		_, fine = value.(string)
	case "boolean":
		_, fine = value.(bool)
	case "integer":
		var n float64
		n, fine = value.(float64)
		for bound, sign := range map[string]float64{"minimum": 1, "maximum": -1} {
			if limit, err := strconv.ParseFloat(fmt.Sprint(schema[bound]), 64); err == nil && sign*n < sign*limit {
				s.Errorf("%s is %v, past its %s of %v", where, n, bound, limit)
			}
		}
	case "object":
		var object map[string]any
		if object, fine = value.(map[string]any); fine {
			s.checkObject(where, schema, object)
		}
	}
	if !fine {
		s.Errorf("%s is %v, want a %v", where, value, schema["type"])
	}
}

func (s *swagger) checkObject(where string, schema, object map[string]any) {
	s.Helper()
	properties, _ := schema["properties"].(map[string]any)
	for name, value := range object {
		if inner, ok := properties[name].(map[string]any); ok {
			s.check(where+"."+name, inner, value)
		} else {
			s.Errorf("%s.%s is not known", where, name)
		}
	}
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if object[fmt.Sprint(name)] == nil {
			s.Errorf("%s.%v is required", where, name)
		}
	}
}

// What the driver sends is what each supported release defines.
func TestContract(t *testing.T) {
	oldest := false
	for _, s := range definitions(t) {
		t.Run(s.version.String(), func(t *testing.T) {
			s.TB = t
			oldest = oldest || s.version == Oldest
			d := &Driver{version: s.version}
			c := &vm.Config{ID: "contract-test", MemoryMiB: MinMemoryMiB, VCPUs: MaxVCPUs, DiskMiB: vm.MinDiskMiB}
			for _, r := range append(d.devices(c),
				request{pathLogger, &logger{Level: levelOfMessages, ShowLevel: true}},
				request{pathActions, &action{actionStart}},
				request{pathSnapshotCreate, &snapshotCreate{Type: snapshotFull, State: "/x", Memory: "/y"}},
				request{pathSnapshotLoad, &snapshotLoad{State: "/x", Memory: memoryBackend{Type: memoryFromFile, Path: "/y"}, Resume: true}},
			) {
				s.sent(http.MethodPut, r)
			}
			s.sent(http.MethodPatch, request{pathVM, &vmState{statePaused}})
			s.sent(http.MethodPatch, request{pathVM, &vmState{stateResumed}})
			for def, field := range map[string]string{"Error": "fault_message", "FirecrackerVersion": "firecracker_version", "InstanceInfo": "state"} {
				schema := s.resolve(map[string]any{"$ref": "#/definitions/" + def})
				if properties, _ := schema["properties"].(map[string]any); properties[field] == nil {
					t.Errorf("%s has no %s, which the driver reads", def, field)
				}
			}
			// What is given to newer releases alone is known there, and not before.
			serial, _ := s.body(http.MethodPut, pathSerial)["properties"].(map[string]any)
			if known := serial["rate_limiter"] != nil; known != s.version.limitsSerial() {
				t.Errorf("the console's limiter: known is %v, sent is %v", known, s.version.limitsSerial())
			}
		})
	}
	if !oldest {
		t.Errorf("no definition is that of %v, the oldest release that is used", Oldest)
	}
}

func (s *swagger) sent(method string, r request) {
	s.Helper()
	data, err := json.Marshal(r.body)
	if err != nil {
		s.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		s.Fatal(err)
	}
	s.check(method+" "+r.path, s.body(method, r.path), value)
}

// The fake knows what each release defines, no more and no less, so that what it
// takes Firecracker would take.
func TestFakeKeepsContract(t *testing.T) {
	for _, s := range definitions(t) {
		for key, endpoint := range fakeEndpoints {
			method, path, _ := strings.Cut(key, " ")
			s.compare(key, s.body(method, path), endpoint.fields)
		}
	}
}

// kinds are the fake's types by their names in the definition.
var kinds = map[any]string{"string": "string", "integer": "int", "boolean": "bool"}

func (s *swagger) compare(where string, schema map[string]any, known fields) {
	s.Helper()
	properties, _ := schema["properties"].(map[string]any)
	required, _ := schema["required"].([]any)
	for name, what := range known {
		if since, rest, _ := strings.Cut(what, " "); strings.HasPrefix(since, "since:") {
			from, err := ParseVersion(strings.TrimPrefix(since, "since:"))
			if err != nil {
				s.Fatal(err)
			}
			if what = rest; s.version.Compare(from) < 0 {
				if properties[name] != nil {
					s.Errorf("%v: %s.%s is known before %v", s.version, where, name, from)
				}
				continue
			}
		}
		words := strings.Fields(what)
		kind, must := strings.CutSuffix(words[0], "!")
		property, ok := properties[name].(map[string]any)
		if !ok {
			s.Errorf("%v: %s.%s is not defined", s.version, where, name)
			continue
		}
		if must != slices.Contains(required, any(name)) {
			s.Errorf("%v: %s.%s: required is %v for the fake alone", s.version, where, name, must)
		}
		property = s.resolve(property)
		if inner, isObject := objects[kind]; isObject {
			s.compare(where+"."+name, property, inner)
			continue
		}
		var enum []string
		if list, ok := property["enum"].([]any); ok {
			for _, e := range list {
				enum = append(enum, fmt.Sprint(e))
			}
		}
		if kinds[property["type"]] != kind || !slices.Equal(enum, words[1:]) {
			s.Errorf("%v: %s.%s is %v %v, for the fake %s", s.version, where, name, property["type"], enum, what)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if _, ok := known[name]; !ok && slices.Contains(required, any(name)) {
			s.Errorf("%v: %s.%s is required, and the fake does not know it", s.version, where, name)
		}
	}
}
