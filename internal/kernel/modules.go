package kernel

import (
	"bytes"
	"debug/elf"
	"fmt"
	"path"
	"strings"
)

const (
	// moduleMax bounds a module's file, in bytes.
	moduleMax = 16 << 20
	// builtinName is the file, beside modules, that lists those that are built in.
	builtinName = "modules.builtin"
)

// A module is one that is to be loaded.
type module struct {
	name string
	data []byte
}

// addBuiltin adds the modules that list, the content of modules.builtin, names.
func addBuiltin(builtin map[string]bool, list []byte) {
	for line := range strings.FieldsSeq(string(list)) {
		if name, ok := moduleName(line); ok {
			builtin[name] = true
		}
	}
}

// moduleName is the name by which the kernel knows the module in file.
func moduleName(file string) (name string, ok bool) {
	base, ok := strings.CutSuffix(path.Base(file), ".ko")
	return strings.ReplaceAll(base, "-", "_"), ok && base != ""
}

// modinfo returns the values of a key of a module's description.
func modinfo(file []byte, key string) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil || section.Size > 1<<20 {
		return nil, fmt.Errorf("it is no kernel module")
	}
	data, err := section.Data()
	if err != nil {
		return nil, err
	}
	var values []string
	for field := range bytes.SplitSeq(data, []byte{0}) {
		if v, ok := bytes.CutPrefix(field, []byte(key+"=")); ok {
			values = append(values, string(v))
		}
	}
	return values, nil
}

// loadOrder puts the wanted modules, and those that they depend on, in an order in
// which they can be loaded. What read does not know (ok is false) is taken for built
// in if builtin has it.
func loadOrder(wanted []string, modules map[string][]byte, builtin map[string]bool) ([]module, error) {
	var order []module
	state := map[string]int{} // 1 while its dependencies are looked at, 2 when it is in order
	var visit func(name string) error
	visit = func(name string) error {
		switch {
		case state[name] == 2 || builtin[name]:
			return nil
		case state[name] == 1:
			return fmt.Errorf("cannot order modules: %s depends on itself", name)
		}
		state[name] = 1
		data, ok := modules[name]
		if !ok {
			return fmt.Errorf("cannot order modules: the kernel has no %s", name)
		}
		depends, err := modinfo(data, "depends")
		if err != nil {
			return fmt.Errorf("cannot read module %s: %w", name, err)
		}
		soft, err := modinfo(data, "softdep")
		if err != nil {
			return fmt.Errorf("cannot read module %s: %w", name, err)
		}
		for _, list := range depends {
			for dep := range strings.SplitSeq(list, ",") {
				if dep == "" {
					continue
				}
				if err := visit(strings.ReplaceAll(dep, "-", "_")); err != nil {
					return err
				}
			}
		}
		for _, list := range soft {
			// Its algorithms, say: wanted, but only if they are there.
			for dep := range strings.FieldsSeq(strings.TrimPrefix(list, "pre:")) {
				dep = strings.ReplaceAll(dep, "-", "_")
				if _, ok := modules[dep]; ok {
					if err := visit(dep); err != nil {
						return err
					}
				}
			}
		}
		state[name] = 2
		order = append(order, module{name, data})
		return nil
	}
	for _, name := range wanted {
		if err := visit(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}
