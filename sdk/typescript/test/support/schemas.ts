/** As much of JSON Schema as the API's description uses. */
export interface Schema {
  readonly $ref?: string;
  readonly allOf?: readonly Schema[];
  readonly oneOf?: readonly Schema[];
  readonly enum?: readonly unknown[];
  readonly type?: string | readonly string[];
  readonly properties?: { readonly [name: string]: Schema };
  readonly required?: readonly string[];
  readonly items?: Schema;
}

/** A value with all fields of a schema. */
export function exampleOf(schema: Schema, all: { readonly [name: string]: Schema }): unknown {
  if (schema.$ref !== undefined) {
    const name = schema.$ref.split("/").pop() ?? "";
    const found = all[name];
    if (!found) throw new Error(`no schema ${name}`);
    return exampleOf(found, all);
  }
  if (schema.allOf) return Object.assign({}, ...schema.allOf.map((part) => exampleOf(part, all)));
  if (schema.oneOf) return exampleOf(schema.oneOf.find(({ type }) => type !== "null") ?? {}, all);
  if (schema.enum) return schema.enum[0];
  const type = Array.isArray(schema.type) ? schema.type.find((one: string) => one !== "null") : schema.type;
  switch (type) {
    case "object":
      return Object.fromEntries(Object.entries(schema.properties ?? {}).map(([name, property]) => [name, exampleOf(property, all)]));
    case "array":
      return [exampleOf(schema.items ?? {}, all)];
    case "string":
      return "x";
    case "integer":
    case "number":
      return 1;
    case "boolean":
      return true;
    default:
      return { any: "JSON" };
  }
}
