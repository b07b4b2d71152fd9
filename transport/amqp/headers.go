package amqp

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rabbitmq/amqp091-go"
)

// headerText converts the value of a header to text, since Watermill's metadata is text: numbers to
// decimal, times to RFC 3339, bytes to base64 unless they are UTF-8, tables and arrays to JSON. It
// reports false for a value that is absent or cannot be converted.
func headerText(value any) (string, bool) {
	switch v := value.(type) {
	case nil:
		return "", false
	case string:
		return v, true
	case []byte:
		if utf8.Valid(v) {
			return string(v), true
		}
		return base64.StdEncoding.EncodeToString(v), true
	case bool:
		return strconv.FormatBool(v), true
	case int32:
		return strconv.Itoa(int(v)), true
	case int64:
		return strconv.FormatInt(v, 10), true
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32), true
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), true
	case time.Time:
		return v.UTC().Format(time.RFC3339), true
	case amqp091.Decimal:
		return decimalText(v), true
	case amqp091.Table, []any:
		text, err := json.Marshal(jsonValue(v))
		return string(text), err == nil
	default: // other integers
		return fmt.Sprint(v), true
	}
}

func decimalText(d amqp091.Decimal) string {
	text := strconv.FormatInt(int64(d.Value), 10)
	if d.Scale == 0 {
		return text
	}
	sign := ""
	if d.Value < 0 {
		sign, text = "-", text[1:]
	}
	if missing := int(d.Scale) + 1 - len(text); missing > 0 {
		text = strings.Repeat("0", missing) + text
	}
	point := len(text) - int(d.Scale)
	return sign + text[:point] + "." + text[point:]
}

// jsonValue converts a header's value to a value that encoding/json can always encode.
func jsonValue(value any) any {
	switch v := value.(type) {
	case amqp091.Table:
		object := make(map[string]any, len(v))
		for name, value := range v {
			object[name] = jsonValue(value)
		}
		return object
	case []any:
		array := make([]any, len(v))
		for i, value := range v {
			array[i] = jsonValue(value)
		}
		return array
	case nil, bool:
		return v
	case float32:
		return finite(float64(v))
	case float64:
		return finite(v)
	case int8, int16, int32, int64, int, uint8, uint16, uint32:
		return v
	default:
		text, _ := headerText(v)
		return text
	}
}

func finite(f float64) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return f
}
