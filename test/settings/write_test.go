package settings

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// writeYAML writes the settings of the structure v as lines.
func writeYAML(b *strings.Builder, v reflect.Value, indent string) {
	for i := range v.NumField() {
		key, f := v.Type().Field(i).Tag.Get("yaml"), v.Field(i)
		_, isTime := f.Interface().(time.Time)
		switch {
		case key == "-":
		case f.Kind() == reflect.Struct && !isTime:
			fmt.Fprintf(b, "%s%s:\n", indent, key)
			writeYAML(b, f, indent+"  ")
		case f.Kind() == reflect.Map:
			fmt.Fprintf(b, "%s%s:\n", indent, key)
			for _, k := range f.MapKeys() {
				fmt.Fprintf(b, "%s  %s: %s\n", indent, k, f.MapIndex(k))
			}
		case f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Struct:
			fmt.Fprintf(b, "%s%s:\n", indent, key)
			for k := range f.Len() {
				fmt.Fprintf(b, "%s  -\n", indent)
				writeYAML(b, f.Index(k), indent+"    ")
			}
		case f.Kind() == reflect.Slice:
			fmt.Fprintf(b, "%s%s: [%s]\n", indent, key, join(f))
		default:
			fmt.Fprintf(b, "%s%s: %s\n", indent, key, text(f))
		}
	}
}

// writeEnvironment puts the settings of the structure v into variables.
func writeEnvironment(variables map[string]string, v reflect.Value, prefix string) {
	for i := range v.NumField() {
		tag, f := v.Type().Field(i).Tag, v.Field(i)
		name := prefix + tag.Get("env")
		inside := prefix + tag.Get("envPrefix")
		_, isTime := f.Interface().(time.Time)
		switch {
		case tag.Get("env") == "-":
		case f.Kind() == reflect.Struct && !isTime:
			writeEnvironment(variables, f, inside)
		case f.Kind() == reflect.Map:
			var pairs []string
			for _, k := range f.MapKeys() {
				pairs = append(pairs, k.String()+":"+f.MapIndex(k).String())
			}
			variables[name] = strings.Join(pairs, ",")
		case f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Struct:
			for k := range f.Len() {
				writeEnvironment(variables, f.Index(k), fmt.Sprintf("%s%d_", inside, k))
			}
		case f.Kind() == reflect.Slice:
			variables[name] = join(f)
		default:
			variables[name] = text(f)
		}
	}
}

func join(list reflect.Value) string {
	words := make([]string, list.Len())
	for k := range words {
		words[k] = text(list.Index(k))
	}
	return strings.Join(words, ",")
}

// text returns a value as people write it.
func text(v reflect.Value) string {
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		word, err := m.MarshalText()
		if err != nil {
			panic(err)
		}
		return string(word)
	}
	return fmt.Sprint(v.Interface())
}
