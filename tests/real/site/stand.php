<?php
/*
 * Plugin of the site under test: what any site's own plugin does (registered meta), a record of what really happened,
 * and two disturbances that only the site itself can make. They come with a request and end with it.
 */
add_action('init', function () {
    foreach (get_option('trueup_meta', []) as $name => $schema) {
        $type = is_array($schema['type']) ? $schema['type'][0] : $schema['type'];
        register_post_meta('post', $name, [
            'single' => true, 'type' => $type, 'show_in_rest' => ['schema' => $schema],
            'auth_callback' => '__return_true',
        ]);
    }
});

/* A plugin that fails for good: before anything happens, or as soon as a post was stored. Once. */
function trueup_break($when) {
    if (get_option('trueup_break') === $when) {
        delete_option('trueup_break');
        trueup_function_that_is_not_there();
    }
}
add_action('rest_api_init', fn () => trueup_break('before'));
add_action('save_post_post', fn () => trueup_break('after'), 99);

function trueup_happened($id, $action) {
    global $wpdb;
    $wpdb->insert($wpdb->prefix . 'trueup_effects', ['post' => $id, 'action' => $action]);
}

add_action('save_post_post', function ($id, $post, $update) {
    if (!$update && $post->post_status !== 'auto-draft') {
        trueup_happened($id, 'create');
    }
}, 10, 3);

add_action('post_updated', function ($id, $after, $before) {
    if ($after->post_type !== 'post') {
        return;
    }
    [$was, $is] = [$before->post_status, $after->post_status];
    $action = 'update';
    if ($is === 'trash') {
        $action = 'trash';
    } elseif ($was === 'trash') {
        $action = 'restore';
    } elseif ($is === 'publish' && $was !== 'publish') {
        $action = 'publish';
    } elseif ($is === 'future' && $was !== 'future') {
        $action = 'schedule';
    } elseif (in_array($was, ['publish', 'future']) && in_array($is, ['draft', 'pending', 'private'])) {
        $action = 'withdraw';
    }
    trueup_happened($id, $action);
}, 10, 3);

add_action('deleted_post', function ($id, $post) {
    if ($post->post_type === 'post') {
        trueup_happened($id, 'delete');
    }
}, 10, 2);

/* Directly before the row is written: the slug is chosen, nothing is stored. */
add_filter('wp_insert_post_data', function ($data) {
    if ($data['post_type'] !== 'post') {
        return $data;
    }
    if (isset($_SERVER['HTTP_X_STAND_PAUSE'])) {
        usleep((int) (1e6 * (float) $_SERVER['HTTP_X_STAND_PAUSE']));
    }
    if (isset($_SERVER['HTTP_X_STAND_REWRITE'])) {
        $order = json_decode(base64_decode($_SERVER['HTTP_X_STAND_REWRITE']), true);
        $column = ['slug' => 'post_name'][$order['field']] ?? 'post_' . $order['field'];
        $stored = $order['find'] === null ? $order['replace']
            : str_replace($order['find'], $order['replace'], wp_unslash($data[$column]));
        $data[$column] = wp_slash($stored);
    }
    return $data;
});
